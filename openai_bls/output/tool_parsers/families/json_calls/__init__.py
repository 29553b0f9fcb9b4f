"""Forms whose arguments are JSON."""
