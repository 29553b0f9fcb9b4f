"""Builder: a Hugging Face checkpoint becomes an engine in the model repository. Imports launcher and below."""
