"""Engine of llama.cpp: a GGUF file as it is."""
