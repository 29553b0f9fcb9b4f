"""Load generator: prompts of a given length, requests in closed or open loop, and what they measured."""
