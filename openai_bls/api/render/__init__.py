"""/v1/chat/completions/render and /v1/completions/render: the token ids that a request would give the engine."""
