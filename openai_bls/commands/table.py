"""Table of the commands: name, one line of help, and the module, which is imported when the command runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import NamedTuple, Protocol, cast


class Implementation(Protocol):
    """Module of a command."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add options and description to the command's parser."""

    def run(self, options: Namespace) -> int:
        """Run the command; returns the exit status. `options.parser` is to report errors with."""


class Command(NamedTuple):
    """Entry of the table."""

    name: str
    help: str
    module: str
    passes_on: bool = False
    """Words after `--` are another program's: they come as `options.extra`."""
    begins: str = ""
    """Line that is printed before the module is imported, which takes seconds the first time."""

    def load(self) -> Implementation:
        """The module."""
        return cast(Implementation, import_module(self.module))


COMMANDS = (
    Command(
        "serve",
        "start tritonserver and stay in the foreground",
        "openai_bls.commands.serve",
        passes_on=True,
        begins="looking at the machine, the model repository and the engine",
    ),
    Command("build", "build an engine from a checkpoint", "openai_bls.commands.building.options"),
    Command("engine", "serve an engine in a process of its own, without Triton", "openai_bls.commands.engine"),
    Command("verify", "ask a built engine one question, without a server", "openai_bls.commands.verify"),
    Command("smoke", "check every endpoint of a server", "openai_bls.commands.smoke"),
    Command("doctor", "check the machine, the environment and the model repository", "openai_bls.commands.doctor"),
    Command("render", "rewrite every config.pbtxt, with new settings or the same", "openai_bls.commands.render"),
    Command("reload", "unload models of a running server and load them again", "openai_bls.commands.reload"),
    Command("key", "make an API key, and its line for the file of keys", "openai_bls.commands.key"),
    Command("prepare", "make a model repository, or bring one up to this release", "openai_bls.commands.prepare"),
    Command(
        "install-server", "put a `tritonserver` command into the environment", "openai_bls.commands.install.server"
    ),
    Command("install-engine", "make an environment with vLLM", "openai_bls.commands.install.engine"),
    Command("run-batch", "have a running server answer a file of requests", "openai_bls.commands.run_batch"),
    Command("completion", "print a script for completion in a shell", "openai_bls.commands.completion"),
)
