"""`build`: the command, its options, and the first engine of `serve`."""
