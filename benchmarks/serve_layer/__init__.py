"""The serving layer next to others: `python -m benchmarks.serve_layer`."""
