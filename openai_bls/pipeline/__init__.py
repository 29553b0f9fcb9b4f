"""Pipeline from a valid request to the events of its answer: prompts, sequences, generation, metrics.

Imports transport, engines, output and core.
"""
