"""Models: the list of served models."""
