"""The page on a server that hears and speaks."""
