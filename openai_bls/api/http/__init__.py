"""The /v1 HTTP server inside the `openai_bls` model process."""
