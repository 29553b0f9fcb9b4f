"""Line editor of the chat: several lines, a history file, completion of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


class LineEditor:
    """Reads what the user types.

    Args:
        history: file of what was typed before.
        commands: words that begin with a slash.
    """

    def __init__(self, history: Path, commands: Sequence[str]) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=_Commands(commands),
            complete_while_typing=True,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=lambda _width, _number, _wraps: ". ",
        )
        # A mode of its own, so that results are not in the history.
        self._results: PromptSession[str] = PromptSession()

    def read(self) -> str:
        """A question or a command.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D on an empty line.
        """
        return self._session.prompt("> ")

    def read_result(self, tool: str) -> str:
        """Result of a tool, typed by the user; raises as `read`."""
        return self._results.prompt(f"result of {tool}: ")


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    # Not Ctrl-J: a terminal hands on an Enter that was typed before the prompt as that.
    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Commands(Completer):
    """Commands, at the start of the input alone."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> list[Completion]:
        text = document.text
        if not text.startswith("/") or any(character.isspace() for character in text):
            return []
        return [Completion(word, start_position=-len(text)) for word in self._words if word.startswith(text)]
