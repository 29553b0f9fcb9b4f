"""Benchmarks of prompts with images."""
