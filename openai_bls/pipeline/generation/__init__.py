"""Generation of a request: its sequences and the events of their answers.

Imports lifecycle, admission and models.
"""
