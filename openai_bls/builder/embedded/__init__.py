"""Recipe of the engines of transformers: the checkpoint as it is, a draft model, and the self-test. Imports source, tokenizer and placing."""
