"""Engines: `GenerationRequest`s in, `TokenDelta`s out, behind `core.engine.Engine`. Imports output and core."""
