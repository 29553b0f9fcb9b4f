"""What several test files ask."""

from __future__ import annotations

from typing import Any

HELLO: Any = [{"role": "user", "content": "Hello"}]
QUESTION: Any = [{"role": "user", "content": "What is machine learning?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}
