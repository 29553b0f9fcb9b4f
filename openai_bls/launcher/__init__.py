"""Launcher of tritonserver: its checks, ranks, readiness, smoke test and shutdown. Imports triton_models and below."""
