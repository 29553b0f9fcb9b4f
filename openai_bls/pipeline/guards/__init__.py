"""Guards: models of users that see each request and each answer.

Imports transport and below, and nothing else of the pipeline.
"""
