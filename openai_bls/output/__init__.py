"""From token ids to text: detokenizers, stop strings, reasoning, tool calls, structured output. Imports core."""
