"""Entry point of the image: a command of `python3 -m openai_bls`, one of its own, or any program.

    serve [...]      as `python3 -m openai_bls serve`; says what to mount where there is no engine
    build [...]      as `build/engine.py`, into the mounted repository; an empty one gets the image's models first
    verify [...]     as `build/verify.py`: one question to the engine, outside Triton
    prepare          bring the mounted repository's models up to this image: after another tag of it
    doctor, ...      the other commands of `python3 -m openai_bls`, as they are
    tritonserver ... every other word is a program: `tritonserver --model-repository=model_repository`, `bash`. There
                     `model_repository` is the mounted one

The model repository is a volume, for it holds the engine, and the models' code lies beside the engine. So the code may
be older than the library in the image. `serve` says so and writes nothing; `prepare` replaces it. config.pbtxt files,
which hold settings, are never touched. The last thing is always an exec, so that signals reach the program itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
IMAGE_MODELS = Path(__file__).resolve().parent / "model_repository"
"""The models as this image brings them: without an engine."""

_VARIABLE = "OPENAI_BLS_MODEL_REPOSITORY"
_LIBRARY_COMMANDS = ("serve", "install-server", "doctor", "render", "reload", "key")
_SCRIPTS = {"build": "engine.py", "verify": "verify.py"}
_COMMANDS = (*_LIBRARY_COMMANDS, *_SCRIPTS, "prepare")


class StartError(Exception):
    """One sentence that says what is wrong and what to do."""


def check_engine(repository: Path) -> None:
    """There is an engine to serve.

    Raises:
        StartError: there is none; says what to mount, or to build.
    """
    manifest = repository / "tensorrt_llm" / "1" / "engine.json"
    if not manifest.is_file():
        raise StartError(
            f"there is no engine at {repository} ({manifest} is missing): mount a model repository that has one"
            f" (docker run -v /path/to/repository:{repository} ...), or build it first into the folder or volume that"
            " you mount there, with the command `build --model <Hugging Face directory or hub id>` of this image"
        )


def outdated(repository: Path) -> list[Path]:
    """The models' code in `repository` that is not this image's, as paths below it."""
    return [
        code
        for code in (path.relative_to(IMAGE_MODELS) for path in sorted(IMAGE_MODELS.glob("*/1/model.py")))
        if (repository / code).is_file() and (repository / code).read_bytes() != (IMAGE_MODELS / code).read_bytes()
    ]


def add_models(repository: Path) -> list[str]:
    """Copy the models that `repository` lacks; their names.

    Raises:
        StartError: the folder cannot be written.
    """
    added = []
    try:
        repository.mkdir(parents=True, exist_ok=True)
        for config in sorted(IMAGE_MODELS.glob("*/config.pbtxt")):
            model = config.parent
            if not (repository / model.name / config.name).is_file():
                # The file that makes a folder a model comes last, so that a copy that was cut short is made again.
                files = [path for path in model.rglob("*") if path.is_file() and path != config]
                for path in [*files, config]:
                    target = repository / path.relative_to(IMAGE_MODELS)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
                added.append(model.name)
        if not os.access(repository, os.W_OK):
            raise PermissionError(None, "read-only")
    except OSError as error:
        raise _not_writable(repository, error) from None
    return added


def replace_code(repository: Path) -> list[Path]:
    """Put this image's code in the place of what differs; the paths below `repository`.

    Raises:
        StartError: the folder cannot be written.
    """
    replaced = outdated(repository)
    try:
        for code in replaced:
            aside = repository / code.with_name(f".{code.name}.{os.getpid()}")
            shutil.copyfile(IMAGE_MODELS / code, aside)
            aside.replace(repository / code)
    except OSError as error:
        raise _not_writable(repository, error) from None
    return replaced


def _not_writable(repository: Path, error: OSError) -> StartError:
    return StartError(
        f"cannot write to {repository} as user {os.getuid()}, group {os.getgid()} ({error.strerror}): mount a folder"
        " that this user or group may write to, or run the container with --user"
    )


def _repository(arguments: list[str]) -> Path:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-repository", type=Path, default=Path(os.environ.get(_VARIABLE, "model_repository")))
    return Path(parser.parse_known_args(arguments)[0].model_repository)


def _say(line: str) -> None:
    print(line, flush=True)


def _warn_if_outdated(repository: Path) -> None:
    if paths := outdated(repository):
        _say(
            f"warning: {', '.join(map(str, paths))} in {repository} is not what this image brings; if the repository"
            " was made by another version of the image, run the image's command `prepare` on it"
        )


def _add_models(repository: Path) -> None:
    for name in add_models(repository):
        _say(f"added: {name}")


def _run(*command: str) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *command])


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
    repository = _repository(rest)
    only_asks = not {"-h", "--help", "--dry-run"}.isdisjoint(rest)
    # What is written is for the group too: another container may run as another user of group 0.
    os.umask(0o002)
    try:
        if command == "serve" and not only_asks:
            check_engine(repository)
            _warn_if_outdated(repository)
        elif command == "prepare":
            if rest:
                raise StartError(f"prepare takes no arguments, but got {' '.join(rest)}: set {_VARIABLE} instead")
            _add_models(repository)
            for path in replace_code(repository):
                _say(f"replaced: {path}")
            _say(f"{repository} has the models of this image")
            return 0
        elif command in _SCRIPTS:
            if command == "build" and not only_asks:
                _add_models(repository)
                _warn_if_outdated(repository)
            _run(str(ROOT / "build" / _SCRIPTS[command]), "--model-repository", str(repository), *rest)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _run("-m", "openai_bls", command, *rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
