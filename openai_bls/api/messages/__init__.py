"""Anthropic's Messages API: its requests become chat completions, and what the model writes becomes content blocks."""
