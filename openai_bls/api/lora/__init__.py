"""LoRA adapters loaded and unloaded while the server runs, in vLLM's form."""
