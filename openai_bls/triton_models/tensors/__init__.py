"""Declaration of each model's tensors and queue, its config.pbtxt, and the values of its tensors."""
