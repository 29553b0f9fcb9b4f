"""Preparation of a request for the engine: check, tokenize, constrain, sequences.

Imports generation and models.
"""
