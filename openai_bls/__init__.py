"""One Triton model repository that speaks the OpenAI API by itself."""

__version__ = "0.1.0"
