"""Recipe of the embedded and the null engine, with draft model and self-test. Imports source, tokenizer, placing."""
