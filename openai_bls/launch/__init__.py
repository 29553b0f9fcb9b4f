"""Starting a tritonserver: finding one, preparing it, running it, and leaving nothing behind."""
