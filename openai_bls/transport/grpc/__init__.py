"""gRPC transport from `openai_bls` to the C++ backend `tensorrtllm`, which has the official tensors alone.

"Official tensors" are those of NVIDIA's tensorrtllm_backend templates. Requests go over this server's own gRPC front
end, looped back: `client` is the `EngineClient`, `encoding` and `decoding` turn requests into tensors and tensors into
deltas, `wire` puts them into Triton's messages, `description` reads the engine's folder.

Source of what the backend does: triton_backend/inflight_batcher_llm/src in TensorRT-LLM, read, not run. tritonclient is
imported by `client` and `wire` alone, which are imported only where an engine needs them.
"""
