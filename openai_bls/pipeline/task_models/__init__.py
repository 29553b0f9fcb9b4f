"""Task models: Triton models of users that declare an `openai_task`, and the calls of them.

Imports transport and below, and nothing else of the pipeline.
"""
