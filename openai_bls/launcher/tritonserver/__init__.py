"""Tritonserver: its command, release, process and ports. Imports launcher.errors."""
