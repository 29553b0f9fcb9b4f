"""Client of the benchmarks: a process that asks servers in turns and measures what comes back."""
