"""Texts of grammars for the engines' libraries, and what each of these enforces."""
