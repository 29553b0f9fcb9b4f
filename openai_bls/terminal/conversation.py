"""Conversation of a chat: messages in OpenAI's form, saved and loaded as JSON, or saved as markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai_bls.launcher.errors import LaunchError

Message = dict[str, Any]
_ROLES = ("system", "developer", "user", "assistant", "tool")


class Conversation:
    """Messages so far, after an optional system prompt."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.turns: list[Message] = []
        """Everything but the system prompt."""

    @property
    def messages(self) -> list[Message]:
        """As a request has them."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def add(self, message: Message) -> None:
        """Append a message."""
        self.turns.append(message)

    def back_to_question(self) -> bool:
        """Drop what came after the last message of the user; False if there is none."""
        last = max((n for n, turn in enumerate(self.turns) if turn["role"] == "user"), default=None)
        if last is None:
            return False
        del self.turns[last + 1 :]
        return True

    def drop_question(self) -> None:
        """Drop the last message of the user and what came after it."""
        if self.back_to_question():
            self.turns.pop()

    def save(self, path: Path, model: str) -> None:
        """Write markdown to a file that ends in .md, else JSON, which `load` reads.

        Raises:
            LaunchError: it cannot be written.
        """
        markdown = path.suffix.lower() in (".md", ".markdown")
        text = self._markdown() if markdown else _dump({"model": model, "messages": self.messages}) + "\n"
        try:
            path.expanduser().write_text(text, encoding="utf-8")
        except OSError as error:
            raise LaunchError(f"{path} cannot be written: {error.strerror}") from None

    def load(self, path: Path) -> None:
        """Take the messages of a JSON file in place of these: a list, or an object with `messages`.

        Raises:
            LaunchError: it cannot be read, or is something else.
        """
        found = read_json(path)
        messages = found.get("messages") if isinstance(found, dict) else found
        if not isinstance(messages, list) or not all(
            isinstance(one, dict) and one.get("role") in _ROLES for one in messages
        ):
            raise LaunchError(f"{path} is no conversation: it must be JSON with a list of messages")
        system = [one for one in messages[:1] if one["role"] == "system" and isinstance(one.get("content"), str)]
        self.system = system[0]["content"] if system else ""
        self.turns = messages[len(system) :]

    def _markdown(self) -> str:
        parts = []
        for message in self.messages:
            parts.append(f"## {str(message['role']).capitalize()}")
            content = message.get("content")
            if content:
                parts.append(content if isinstance(content, str) else _markdown_parts(content))
            for call in message.get("tool_calls") or ():
                function = call["function"]
                parts.append(f"Calls `{function['name']}`:\n\n```json\n{function['arguments']}\n```")
        return "\n\n".join(parts) + "\n"


def _markdown_parts(content: Any) -> str:
    """Content that is no string: texts and the places of images, or whatever else it is as JSON."""
    known = ("text", "image_url")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") in known for part in content):
        return "\n\n".join(str(part.get("text")) if part["type"] == "text" else "*(an image)*" for part in content)
    return f"```json\n{_dump(content)}\n```"


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        LaunchError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise LaunchError(f"{path} is no JSON: {error}") from None


def read_tools(path: Path) -> list[Any]:
    """Tools of a JSON file: a list in the form of a request's `tools`, or an object that has it.

    Raises:
        LaunchError: it is none.
    """
    found = read_json(path)
    tools = found.get("tools") if isinstance(found, dict) else found
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) and tool["function"].get("name")
        for tool in tools
    ):
        raise LaunchError(f'{path} has no tools: it must be a list of {{"type": "function", "function": {{...}}}}')
    return tools


def _dump(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
