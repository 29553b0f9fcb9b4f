"""Nearest name to one that does not exist: commands and options."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from openai_bls.commands.table import COMMANDS
from openai_bls.core.nearest import did_you_mean, meant_or_known

_MOST_COMMANDS = 3
"""Commands that are named for one option."""


def unknown_command(name: str) -> str:
    """Sentence about a command that does not exist."""
    return f"there is no command {name!r}: {meant_or_known(name, [command.name for command in COMMANDS])}"


def unknown(command: str, parser: ArgumentParser, arguments: Sequence[str]) -> str:
    """Sentence about the arguments that a command does not take.

    Args:
        command: name of the command.
        parser: parser of the command, with all options.
        arguments: words of the command line that the parser has left over.
    """
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("-") and len(argument) > 1]
    own = _visible(parser)
    if not options:
        hint = " (a model is --model NAME)" if "--model" in own else ""
        return f"unrecognized arguments: {' '.join(arguments)}{hint}"
    said = []
    for option in options:
        near = did_you_mean(option, own) or _longer(option, own)
        elsewhere = [name for name in _that_have(option) if name != command][:_MOST_COMMANDS]
        hints = [near] if near else []
        if elsewhere:
            hints.append(
                f"{' and '.join(f'`openai-bls {name}`' for name in elsewhere)} have it"
                if len(elsewhere) > 1
                else f"`openai-bls {elsewhere[0]}` has it"
            )
        if not hints:
            hints.append(f"`{parser.prog} --help` has the options")
        said.append(f"there is no option {option}: {'; '.join(hints)}")
    return "; ".join(said)


def _longer(option: str, own: Sequence[str]) -> str:
    """Question that names the options with all words of this one, as `--port` is part of several; else empty."""
    words = set(option.split("-"))
    found = [one for one in own if words <= set(one.split("-"))]
    return f"did you mean {' or '.join(found)}?" if found else ""


def _that_have(option: str) -> list[str]:
    """Names of the commands that have an option of this name."""
    found = []
    for command in COMMANDS:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        try:
            command.load().add_arguments(parser)
        except ModuleNotFoundError:
            # Of an extra that is not installed.
            continue
        if option in _visible(parser):
            found.append(command.name)
    return found


def _visible(parser: ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]
