"""Output processing: detokenizers, stop strings, reasoning, tool calls, structured output. Imports core."""
