"""Forms in which each argument stands between tags of its own."""
