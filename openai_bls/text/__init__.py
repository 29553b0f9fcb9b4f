"""Text on its way out: incremental detokenization, stop strings, reasoning, tool calls."""
