"""Tritonserver: its command, restrictions, process and ports. Imports launcher.errors."""
