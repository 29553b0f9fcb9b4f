"""Files of a checkpoint put into the engine: weights and adapters. Imports options and checkpoint."""
