"""Events of streamed answers: their sinks, what goes into them, and what waits there."""
