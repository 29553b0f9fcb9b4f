"""Images of prompts: how a model's processor counts and expands them, and pictures for self-tests."""
