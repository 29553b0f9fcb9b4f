"""Speech: a text as audio, by another Triton model."""
