"""Text on its way out: incremental detokenization, stop strings, tool calls."""
