"""Small endpoints about the server itself, as vLLM has them."""
