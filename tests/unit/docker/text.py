"""The Dockerfile and .dockerignore, read by Docker's own parser and rules. `make images` builds the images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import dockerfile  # type: ignore[import-not-found]
from docker.utils import exclude_paths  # type: ignore[import-untyped]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Stage:
    """A stage as it is written."""

    name: str
    base: str
    commands: tuple[dockerfile.Command, ...]


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile, read."""

    arguments: dict[str, str]
    """The defaults of the ARGs before the first FROM."""
    stages: dict[str, Stage]
    """By name; the last one, if it has none, is called `""`."""


def read(path: Path) -> Dockerfile:
    """Read a Dockerfile."""
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for command in dockerfile.parse_file(str(path)):
        if command.cmd == "FROM":
            base, name = _expand(command.value[0], arguments), "".join(command.value[2:])
            found[name] = Stage(name, base, ())
        elif not found:
            name, _, value = command.value[0].partition("=")
            arguments[name] = value
        else:
            name, stage = list(found.items())[-1]
            found[name] = replace(stage, commands=(*stage.commands, command))
    return Dockerfile(arguments, found)


def context(folder: Path) -> list[PurePosixPath]:
    """The files that .dockerignore leaves of a folder."""
    lines = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    found = (PurePosixPath(name) for name in exclude_paths(str(folder), patterns, dockerfile="Dockerfile"))
    # Docker sends these two to the builder in any case; no COPY may rely on them.
    sent = (name for name in found if str(name) not in ("Dockerfile", ".dockerignore"))
    return sorted(name for name in sent if (folder / name).is_file())


def _expand(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables[match[1]], text)
