"""Life of a request: its context, which is passed to all that work for it, and what it holds while it is in progress.

Imports admission and guards.
"""
