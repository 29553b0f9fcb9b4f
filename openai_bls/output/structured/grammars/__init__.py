"""Grammars as parts and rules: readers of their dialects, and what is made of them for JSON and lexers."""
