"""Engine plans, the C++ backend and ranks under MPI: kept as they are, out at 1.0."""
