"""Model `openai_bls`: the APIs on Triton's endpoints and the /v1 server's process."""
