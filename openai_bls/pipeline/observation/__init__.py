"""Observation of each request: its log line and its trace.

Imports lifecycle.
"""
