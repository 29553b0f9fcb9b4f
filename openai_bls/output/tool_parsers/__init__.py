"""Tool-call formats of the model families and their streaming parsers."""
