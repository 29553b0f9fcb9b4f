"""Types that travel between the packages: requests, token deltas, errors, settings, engine.json.

Imports no other package.
"""
