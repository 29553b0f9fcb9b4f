"""Chat in a terminal: questions, answers as they arrive, and the commands that begin with a slash."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.answer import Answer, Asker
from openai_bls.terminal.connection import Connection, choose_model, connection, served_models, takes_images
from openai_bls.terminal.conversation import Conversation, read_tools
from openai_bls.terminal.images import image_part
from openai_bls.terminal.markdown_stream import MarkdownStream

SAMPLING = ("temperature", "top_p", "max_tokens", "seed")
"""Options that go into each request as they are."""


def run(options: Namespace) -> int:
    """Chat; returns the exit status.

    Raises:
        LaunchError: the server cannot be asked.
    """
    server = connection(options)
    model = choose_model(server, options.model)
    fields = {name: value for name in SAMPLING if (value := getattr(options, name)) is not None}
    asker = Asker(server)
    try:
        chat = Chat(server, asker, model, Conversation(options.system or ""), fields)
        if options.tools is not None:
            chat.tools = read_tools(options.tools)
        if sys.stdin.isatty() and sys.stdout.isatty():
            return _interactive(chat)
        return one_question(chat)
    finally:
        asker.close()


def one_question(chat: Chat) -> int:
    """Answer standard input on standard output, as plain text."""
    question = sys.stdin.read().strip()
    if not question:
        raise LaunchError("there is no question on standard input")
    chat.conversation.add({"role": "user", "content": question})
    answer = Answer()
    for piece in chat.asked(answer):
        if piece.kind == "text":
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    for call in answer.tool_calls:
        sys.stdout.write(f"{call['function']['name']}({call['function']['arguments']})\n")
    if answer.text and not answer.text.endswith("\n"):
        sys.stdout.write("\n")
    return 0


def _interactive(chat: Chat) -> int:
    from openai_bls.terminal.line_editor import LineEditor

    editor = LineEditor(history_path(), list(COMMANDS))
    chat.read_result = editor.read_result
    chat.say(f"[bold]{escape(chat.model)}[/] at {escape(chat.server.url)}. /help for commands, Ctrl-D leaves.")
    while True:
        try:
            text = editor.read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if text.strip() and not chat.take(text.strip()):
            return 0


def history_path() -> Path:
    """File of what was typed, in a folder that is made."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "openai_bls"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"{state}, for the history, cannot be made ({error.strerror}): set XDG_STATE_HOME") from None
    return state / "chat_history"


class Chat:
    """One chat with a model."""

    def __init__(
        self, server: Connection, asker: Asker, model: str, conversation: Conversation, fields: dict[str, Any]
    ) -> None:
        self.server = server
        self.model = model
        self.conversation = conversation
        self.tools: list[Any] = []
        self.images: list[dict[str, Any]] = []
        """Images that go with the next question, as parts of its message."""
        self.read_result: Callable[[str], str] = lambda _: ""
        """Asks the user for what a tool returns."""
        self._asker = asker
        self._fields = fields
        self._console = Console(highlight=False)

    def say(self, text: str) -> None:
        """Print a line in rich's markup."""
        self._console.print(text)

    def take(self, text: str) -> bool:
        """Answer a question, or do what a command says; False to leave."""
        try:
            if not text.startswith("/"):
                images, self.images = self.images, []
                content = [*images, {"type": "text", "text": text}] if images else text
                self.conversation.add({"role": "user", "content": content})
                self.answer()
                return True
            word, _, rest = text.partition(" ")
            if word in ("/quit", "/exit"):
                return False
            command = COMMANDS.get(word)
            if command is None:
                raise LaunchError(f"there is no command {word}: /help lists them")
            command[0](self, rest.strip())
        except LaunchError as error:
            self.say(f"[red]{escape(str(error))}[/]")
        return True

    def asked(self, answer: Answer) -> Any:
        """Pieces of the model's answer to the conversation."""
        fields = {**self._fields, **({"tools": self.tools} if self.tools else {})}
        return self._asker.stream(answer, model=self.model, messages=self.conversation.messages, **fields)

    def answer(self) -> None:
        """Have the last message answered, and tool calls carried out by the user."""
        while True:
            answer = Answer()
            try:
                stopped = self._show(answer)
            except LaunchError:
                # Half a call is no call.
                answer.tool_calls.clear()
                # The question is not in the conversation: without an answer the next one would follow it.
                if answer.text:
                    self.conversation.add(answer.message())
                else:
                    self.conversation.drop_question()
                raise
            if stopped:
                answer.tool_calls.clear()
            self.conversation.add(answer.message())
            self.say(f"[dim]{escape(answer.summary())}{', stopped' if stopped else ''}[/]")
            if not answer.tool_calls or not self._call_tools(answer.tool_calls):
                return

    def _show(self, answer: Answer) -> bool:
        """Print an answer as it comes; True if Ctrl-C has stopped it."""
        pieces = self.asked(answer)
        markdown: MarkdownStream | None = None
        thinking = False
        try:
            for piece in pieces:
                if piece.kind == "reasoning":
                    if markdown is not None:
                        markdown.__exit__(None, None, None)
                        markdown = None
                    thinking = True
                    self._console.print(Text(piece.text, style="dim italic"), end="", soft_wrap=True)
                    continue
                if thinking:
                    self._console.print("\n")
                    thinking = False
                if markdown is None:
                    markdown = MarkdownStream(self._console).__enter__()
                markdown.add(piece.text)
        except KeyboardInterrupt:
            return True
        finally:
            # Closes the connection, which ends the request on the server.
            pieces.close()
            if markdown is not None:
                markdown.__exit__(None, None, None)
            if thinking:
                self._console.print()
        for call in answer.tool_calls:
            self._console.print(
                Text.assemble("→ ", (call["function"]["name"], "bold cyan"), f"({call['function']['arguments']})")
            )
        return False

    def _call_tools(self, calls: list[dict[str, Any]]) -> bool:
        """Ask the user for what each tool returns; False if there is none of it."""
        results = []
        try:
            for call in calls:
                results.append(self.read_result(call["function"]["name"]))
        except (KeyboardInterrupt, EOFError):
            self.conversation.drop_question()
            self.say("[dim]no result: the question and the calls are dropped[/]")
            return False
        for call, result in zip(calls, results, strict=True):
            self.conversation.add({"role": "tool", "tool_call_id": call["id"], "content": result})
        return True

    def set_system(self, text: str) -> None:
        """Set the system prompt; without a text show it."""
        if text:
            self.conversation.system = "" if text == "-" else text
        self.say(f"[dim]system: {escape(self.conversation.system) or 'none'}[/]")

    def add_image(self, name: str) -> None:
        """Take an image for the next question; - drops those that wait."""
        if name == "-":
            self.images.clear()
        else:
            if not takes_images(self.server, self.model):
                raise LaunchError(f"the model {self.model!r} takes text only")
            self.images.append(image_part(_path(name)))
        self.say(f"[dim]images for the next question: {len(self.images)}[/]")

    def save(self, name: str) -> None:
        """Write the conversation."""
        self.conversation.save(_path(name), self.model)
        self.say(f"[dim]saved in {escape(name)}[/]")

    def load(self, name: str) -> None:
        """Read a conversation."""
        self.conversation.load(_path(name))
        self.say(f"[dim]{len(self.conversation.turns)} messages from {escape(name)}[/]")

    def clear(self, _: str) -> None:
        """Forget everything but the system prompt."""
        self.conversation.turns.clear()
        self.say("[dim]a new conversation[/]")

    def retry(self, _: str) -> None:
        """Ask the last question again."""
        if not self.conversation.back_to_question():
            raise LaunchError("there is no question yet")
        self.answer()

    def set_model(self, name: str) -> None:
        """Change the model; without a name list them."""
        if name:
            self.model = choose_model(self.server, name)
        for one in served_models(self.server):
            self.say(f"{'*' if one == self.model else ' '} {escape(one)}")

    def set_tools(self, name: str) -> None:
        """Take the tools of a file; - for none, without a name list them."""
        if name:
            self.tools = [] if name == "-" else read_tools(_path(name))
        self.say(f"[dim]tools: {escape(', '.join(tool['function']['name'] for tool in self.tools)) or 'none'}[/]")

    def help(self, _: str) -> None:
        """List the commands."""
        for word, (_command, argument, text) in COMMANDS.items():
            self.say(f"[bold]{escape(f'{word} {argument}'.strip()):16}[/] {text}")
        self.say("Enter sends, Alt-Enter begins a new line. Ctrl-C stops an answer, Ctrl-D leaves.")


def _path(name: str) -> Path:
    if not name:
        raise LaunchError("give a file's name after the command")
    return Path(name).expanduser()


COMMANDS: dict[str, tuple[Callable[[Chat, str], None], str, str]] = {
    "/system": (Chat.set_system, "TEXT", "set the system prompt, - for none; without a text show it"),
    "/tools": (Chat.set_tools, "FILE", "offer the tools of a JSON file, - for none; you are asked for their results"),
    "/image": (Chat.add_image, "FILE", "send an image with the next question, - for none of those that wait"),
    "/model": (Chat.set_model, "NAME", "change the model; without a name list them"),
    "/retry": (Chat.retry, "", "answer the last question again"),
    "/clear": (Chat.clear, "", "begin a new conversation"),
    "/save": (Chat.save, "FILE", "save the conversation, as markdown if the name ends in .md, else as JSON"),
    "/load": (Chat.load, "FILE", "go on with a conversation that was saved as JSON"),
    "/help": (Chat.help, "", "list the commands"),
    "/quit": (Chat.help, "", "leave"),
}
"""Command → what does it, its argument, and a line of help. /quit ends the loop before it is looked up."""
