"""Benchmarks of the vLLM engine; `benchmarks` has what they share with others.

::

    vllm_serve/         command: `vllm serve`, /v1 over the same vLLM, /v1 over the embedded engine, in turns
    embeddings.py       command: embeddings of `vllm serve` and of /v1 over the same vLLM, in turns
    kv_offload.py       command: vLLM's KV cache beyond the GPU
    results/            results of vllm_serve, from which its section in RESULTS.md is made
"""
