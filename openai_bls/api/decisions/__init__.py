"""Decisions: questions about an input, each answered with the probability of every option."""
