"""Launcher of tritonserver: its checks, jobs, readiness, smoke test and shutdown. Imports triton_models and below."""
