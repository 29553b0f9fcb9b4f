"""KV events: what the prefix cache of an engine holds, published as vLLM does it, over ZMQ in msgpack.

Gateways and routers follow them to send a conversation to the server that has its beginning in the cache.
"""
