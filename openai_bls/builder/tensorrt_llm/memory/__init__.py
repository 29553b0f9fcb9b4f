"""Memory and disk of an engine: estimate and its text. Imports model."""
