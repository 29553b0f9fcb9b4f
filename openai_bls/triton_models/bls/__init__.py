"""BLS calls of other models, and clients of a `preprocessing` that is called so."""
