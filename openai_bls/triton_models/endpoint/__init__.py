"""Requests on Triton's endpoints: their API key, their life and the responses to them."""
