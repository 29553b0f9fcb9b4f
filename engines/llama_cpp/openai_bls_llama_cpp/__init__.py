"""llama.cpp as an engine: a GGUF file as it is, on a CPU. The one package that loads llama.cpp's library."""
