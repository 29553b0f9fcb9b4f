"""Forms that write arguments as a language's literals, with names that have no quotes."""
