"""Recovery of models of a running server: which to load again, when and how. Imports tritonserver and the checks."""
