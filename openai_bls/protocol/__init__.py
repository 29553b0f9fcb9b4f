"""The wire: what OpenAI requests may hold, how answers are written, and how Triton's tensors carry both."""
