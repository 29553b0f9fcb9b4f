"""Plan of an engine: lengths, calibration and their checks. Imports memory and model."""
