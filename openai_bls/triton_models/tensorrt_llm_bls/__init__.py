"""Model `tensorrt_llm_bls`: text in, text out under the official names, on the pipeline of `openai_bls`."""
