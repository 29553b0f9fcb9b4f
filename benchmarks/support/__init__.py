"""What several benchmarks use: an engine in this process, its checkpoints, conditions, options and tables."""
