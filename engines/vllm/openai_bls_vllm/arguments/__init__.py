"""Fields of `EngineArgs` that each version has, and those that are refused."""
