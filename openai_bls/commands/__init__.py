"""Command line `openai-bls`: a table of commands, each a module that is imported when the command runs.

`table` lists the commands, `main` runs one. A command's module has `add_arguments(parser)`, and `run(options)`, which
returns the exit status. It may import every other package, and none imports it.
"""
