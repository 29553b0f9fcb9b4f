"""Survey of an interpreter with vLLM, asked as a process; nothing here imports vllm. Imports core."""
