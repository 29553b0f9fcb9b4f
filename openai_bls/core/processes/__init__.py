"""Processes that must not outlive their starter: their guardian, their folder, and the tree that they make."""
