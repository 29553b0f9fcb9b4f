"""Engines: they turn `GenerationRequest`s into `TokenDelta`s behind one interface (`base.Engine`)."""
