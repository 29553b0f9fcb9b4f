"""Plan of an engine: options, lengths, calibration and their checks. Imports memory and model."""
