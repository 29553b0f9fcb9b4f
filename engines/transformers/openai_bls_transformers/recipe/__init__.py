"""Recipe of the embedded and the null engine, with its self-test. Imports source, tokenizer, placing."""
