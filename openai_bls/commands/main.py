"""Main program of `openai-bls`: finds the command, reads its options, runs it.

Whatever ends a command, nobody sees a traceback that is no bug: a closed pipe, Ctrl-C, a package that is not installed.
Every error is one line, `openai-bls <command>: error: <sentence>`. The exit status is 2 where nothing was done, and 1
where a command has found or met a fault in what it was to do (`doctor`, `smoke`, `verify`, `run-batch`, a dry run).
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from openai_bls import __version__
from openai_bls.commands.table import COMMANDS

PROGRAM = "openai-bls"
_CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit status after the reader of standard output has gone, as a shell has it."""
_INTERRUPTED = 128 + signal.SIGINT
REFUSED = 2
"""Exit status of a command that could not do its work; 1 is that of one that found a fault."""

_PRINTS_ALONE = {"-h", "--help", "--dry-run"}
"""Options whose output is all that a command prints."""
_BY_NAME = {command.name: command for command in COMMANDS}
_EXTRAS = {
    "server": ("pytriton",),
    "smoke": ("openai",),
}
"""Extra → import names of what it brings."""
_EMBEDDED = ("huggingface_hub", "llguidance", "safetensors", "sentencepiece", "tiktoken", "torch", "transformers")
"""Import names of what the embedded engine brings."""


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, as those of everything else, without the usage before them."""

    def error(self, message: str) -> NoReturn:
        """End with a sentence."""
        self.exit(REFUSED, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _BY_NAME.get(arguments[0]) if arguments else None
    if command is not None:
        return run(command.name, arguments[1:])
    # --help, --version, or a mistake.
    return _guarded(lambda: _no_command(arguments), PROGRAM)


def run(name: str, arguments: Sequence[str], *, prog: str = "", **defaults: Any) -> int:
    """Run the command `name`; returns the exit status.

    Args:
        name: name of an entry in the table.
        arguments: command line after the command's name.
        prog: name of the program in messages; by default `openai-bls <name>`.
        defaults: option → value, before those of the command line.
    """
    prog = prog or f"{PROGRAM} {name}"

    def job() -> int:
        begins = _BY_NAME[name].begins
        if begins and not _PRINTS_ALONE.intersection(arguments):
            sys.stdout.write(f"{PROGRAM} {__version__}: {begins}\n")
            sys.stdout.flush()
        options = parse(name, arguments, prog=prog, **defaults)
        return _BY_NAME[name].load().run(options)

    return _guarded(job, prog)


def parse(name: str, arguments: Sequence[str], *, prog: str = "", **defaults: Any) -> argparse.Namespace:
    """Options of the command `name`, the `words` that gave them, and `parser`, to report what is wrong with them."""
    command = _BY_NAME[name]
    module = command.load()
    parser = _Parser(prog=prog or f"{PROGRAM} {name}", allow_abbrev=False)
    module.add_arguments(parser)
    parser.set_defaults(**defaults)
    own, extra = list(arguments), list[str]()
    if command.passes_on and "--" in own:
        cut = own.index("--")
        own, extra = own[:cut], own[cut + 1 :]
    options, unknown = parser.parse_known_args(own)
    if unknown:
        names = getattr(module, "GUIDE_NAMES", None)
        if names is not None:
            from openai_bls.core import guide_names

            guide_names.refuse(parser, unknown, names)
        from openai_bls.commands import nearest

        parser.error(nearest.unknown(name, parser, unknown))
    options.parser, options.words = parser, own
    if command.passes_on:
        options.extra = extra
    return options


def build_parser(*, complete: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands: their names and help, or with `complete` their options, which imports them all."""
    parser = _Parser(
        prog=PROGRAM,
        description="Serve the OpenAI API from an NVIDIA Triton model repository.",
        epilog=f"{PROGRAM} COMMAND --help has the options of each.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"openai_bls {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.help, allow_abbrev=False)
        if complete:
            command.load().add_arguments(added)
    return parser


def _no_command(arguments: Sequence[str]) -> int:
    parser = build_parser()
    if not arguments:
        parser.error(f"name a command: `{PROGRAM} --help` has them")
    if not arguments[0].startswith("-"):
        from openai_bls.commands import nearest

        parser.error(nearest.unknown_command(arguments[0]))
    parser.parse_args(arguments)
    raise AssertionError


def _guarded(job: Callable[[], int], prog: str) -> int:
    """Exit status of `job`, whatever ends it."""
    # Imported by no more than it takes for --help.
    from openai_bls.launcher.errors import LaunchError

    try:
        try:
            return job()
        finally:
            # Here, where a closed pipe is caught; at the interpreter's end it would be a traceback.
            sys.stdout.flush()
    except LaunchError as error:
        sys.stderr.write(f"{prog}: error: {error}\n")
        return REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "openai_bls"):
            raise
        sys.stderr.write(f"{prog}: error: {sys.executable} does not have the package {package}: {_remedy(package)}\n")
        return REFUSED


def _output_is_closed() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _remedy(package: str) -> str:
    """Advice to install `package` and what belongs to it."""
    # As above.
    from openai_bls.core import installing

    if package in _EMBEDDED:
        return installing.with_engine("transformers")
    return installing.with_extra(next((extra for extra, packages in _EXTRAS.items() if package in packages), ""))
