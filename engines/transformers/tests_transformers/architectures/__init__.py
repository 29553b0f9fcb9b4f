"""Architectures of the embedded engine: a tiny random model of each is built and run as a user would, and compared with
transformers' own `generate`. No architecture may be ready and then wrong.
"""
