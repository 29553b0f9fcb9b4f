"""The APIs: OpenAI's endpoints and Anthropic's Messages, on /v1 and on Triton's endpoints.

Imports pipeline and below.
"""
