"""From a Hugging Face checkpoint to an engine in the model repository. Imports triton_models and below."""
