"""The model `preprocessing`: chat templates and tokenization."""
