"""The null engine, which emits given tokens at a given pace, for tests and benchmarks."""
