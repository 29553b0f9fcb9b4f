"""Tool-call formats: how each model family writes calls, parsed from a stream of text."""
