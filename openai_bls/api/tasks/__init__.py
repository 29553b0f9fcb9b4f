"""APIs that are served by task models, and embeddings: one folder for each."""
