"""Entry point of the image: a command of `openai-bls`, or any program.

    serve [...]      as `openai-bls serve`; says what to mount where there is no engine
    build [...]      as `openai-bls build`, into the mounted repository; an empty one gets the models first
    prepare          as `openai-bls prepare`: brings the mounted repository's models up to this image, after another tag
    doctor, ...      the other commands of `openai-bls`
    tritonserver ... every other word is a program: `tritonserver --model-repository=model_repository`, `bash`. There
                     `model_repository` is the mounted one

The model repository is a volume, for it holds the engine, and the models' code lies beside the engine. So the code may
be older than the library in the image. `serve` says so and writes nothing; `prepare` replaces it. The last thing is
always an exec, so that signals reach the program itself.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from openai_bls.commands.main import parse
from openai_bls.commands.options import repository
from openai_bls.commands.table import COMMANDS
from openai_bls.launcher.checks import engine_address

_COMMANDS = tuple(command.name for command in COMMANDS)


def _missing_engine(arguments: list[str]) -> str:
    """Remedy where the command line of `serve` has no engine to serve: what to mount, or to build; else empty."""
    options = parse("serve", arguments)
    folder = repository(options)
    manifest = folder / "tensorrt_llm" / "1" / "engine.json"
    # Without an engine of its own the folder needs a tokenizer, which `serve` looks for.
    if manifest.is_file() or options.dry_run or options.model or engine_address(folder):
        return ""
    return (
        f"there is no engine at {folder} ({manifest} is missing): mount a model repository that has one (docker run -v"
        f" /path/to/repository:{folder} ...), or build it first into the folder or volume that you mount there, with"
        " the command `build --model <Hugging Face directory or hub id>` of this image"
    )


def _run(command: list[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", "openai_bls", *command])


def _run_program(program: str, arguments: list[str]) -> int:
    """Become another program; returns only if that cannot be, with the exit status that a shell has then."""
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        known = ", ".join(_COMMANDS)
        print(f"error: cannot run {program} ({error.strerror}); the image's commands are {known}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def main(arguments: list[str]) -> int:
    """Run a command. Returns only where nothing is to be run, with the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command not in _COMMANDS and not command.startswith("-"):
        return _run_program(command, rest)
    # What is written is for the group too: another container may run as another user of group 0.
    os.umask(0o002)
    if command == "serve" and (missing := _missing_engine(rest)):
        print(f"error: {missing}", file=sys.stderr)
        return 2
    _run([command, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
