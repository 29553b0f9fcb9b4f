"""Admission: order, bounds and budgets of the requests that wait for an engine.

Imports core and nothing else of the pipeline.
"""
