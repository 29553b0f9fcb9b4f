"""Exchange between models: one frame per engine step for all requests, so cost is per step, not per token.

Each `openai_bls` instance holds one Unix socket to `tensorrt_llm`. Requests and cancellations go in as they come; what
an engine step has produced for all of the instance's requests comes back in one frame (`client`, `server`). A second
connection, to `preprocessing`, carries prompts one way and their token ids the other (`prompts`).
docs/architecture/triton.md says why neither is a BLS call.
"""
