"""The tritonserver around a model: its command line and ports, its model index, its shutdown."""
