"""Grammars that outputs are held to, by llguidance: compilation, bitmasks, and refusals in words for clients."""
