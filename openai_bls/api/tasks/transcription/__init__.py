"""Transcriptions and translations: the words of audio, by another Triton model."""
