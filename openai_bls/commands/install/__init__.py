"""Commands that install: what a server or an engine needs beside this package."""
