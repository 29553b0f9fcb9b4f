"""/v1: an ASGI server inside the `openai_bls` model process."""
