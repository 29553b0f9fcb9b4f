"""Commands that install what a server or an engine needs besides this package."""
