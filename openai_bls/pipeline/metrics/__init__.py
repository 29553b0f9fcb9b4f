"""Metrics in the format of Prometheus, and the files that the instances of a server share for them.

Imports models.
"""
