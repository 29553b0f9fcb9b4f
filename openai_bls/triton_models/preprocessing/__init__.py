"""Model `preprocessing`: chat templates and tokenization."""
