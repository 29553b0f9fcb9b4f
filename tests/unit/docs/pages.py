"""The pages of docs/ and of the engines, as tests read them: command lines, tables, pieces of code, links."""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import SUPPRESS
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from openai_bls.commands import serve as serve_command
from openai_bls.commands.building import command as build_command
from openai_bls.commands.main import parse
from openai_bls.commands.table import COMMANDS
from openai_bls.core.settings import ENV_PREFIX, EngineSettings, OpenAiBlsSettings
from openai_bls.launcher.serving.plan import triton_flags
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import MODELS

ROOT = Path(__file__).parents[3]


def _found(*patterns: str) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)))


PAGES = ("README.md", *_found("docs/**/*.md", "engines/*/docs/**/*.md"))
READMES = _found("engines/*/README.md")
RESULTS = _found("benchmarks/RESULTS.md", "engines/*/benchmarks_*/RESULTS.md")
MAX_CELL_CHARS = 200
"""The longest cell of a table."""

# Scripts of build/, and the commands that they are.
SCRIPTS = {"build/engine.py": "build", "build/verify.py": "verify", "build/smoke.py": "smoke"}
# Those that take no option of ours.
NOT_OURS = ("tritonserver", "bash")


class Row(NamedTuple):
    """One row of a table."""

    section: str
    header: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Pieces of code in the first column."""
        return code(self.cells[0])

    @property
    def verdict(self) -> str:
        """The last column."""
        return self.cells[-1]


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_blocks(page: str) -> str:
    return re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)


def code(markdown: str) -> list[str]:
    return re.findall(r"`([^`]+)`", markdown)


@cache
def rows(page: str) -> list[Row]:
    """The rows of all tables."""
    found: list[Row] = []
    section, header = "", tuple[str, ...]()
    for line in without_blocks(page).splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        cells = tuple(map(str.strip, re.split(r"(?<!\\)\|", line)[1:-1]))
        if not cells:
            header = ()
        elif not header:
            header = cells
        elif set(line) - set("|-"):
            assert len(cells) == len(header), line
            found.append(Row(section, header, cells))
    return found


def rows_of(page: str, *sections: str) -> list[Row]:
    found = [row for row in rows(page) if row.section in sections]
    assert {row.section for row in found} == set(sections)
    return found


def commands(page: str) -> Iterator[str]:
    """Command lines with a program of ours: of code blocks, and `python ...` in tables."""
    for block in re.findall(r"```bash\n(.*?)```", text(page), re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if program(line) is not None:
                yield line.strip()
    for row in rows(page):
        yield from (piece for piece in code(row.verdict) if piece.startswith("python "))


def program(line: str) -> tuple[str, list[str]] | None:
    """The program of ours in a command line and its arguments; None if there is none."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # part of a body that goes over several lines
        return None
    if ">>" in words:
        words = words[: words.index(">>")]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name = words.pop(0).partition("=")[0]
        assert is_variable(name) or name in ("MODEL", "ENGINE") or name.startswith("OTEL_"), name
    for number, word in enumerate(words):
        after = [part for part in words[number + 1 :] if part != "..."]
        if re.fullmatch(r"build/\w+\.py", word) and words[number - 1].rpartition("/")[2].startswith("python"):
            return word, after
        if word == "-m" and after and after[0] == "openai_bls":
            return after[0], after[1:]
        if number == 0 and re.fullmatch(r"(.*bin/)?openai-bls", word) and after:
            return "openai_bls", after
        image = re.fullmatch(r"openai_bls:[\w.]+", word) or word == "build-engine"
        if image and words[0] == "docker" and "run" in words[:3]:
            command, *rest = ["build", *after] if word == "build-engine" else (after or ["serve"])
            return None if command in NOT_OURS else ("openai_bls", [command, *rest])
    return None


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


@cache
def build_options() -> set[str]:
    return options_of(parse("build", []).parser)


@cache
def serve_options(*, shown: bool = False) -> set[str]:
    """All options; with `shown` those of its own help, of which a build has more."""
    parser = parse("serve", []).parser
    hidden = {name for action in parser._actions if action.help == SUPPRESS for name in action.option_strings}
    return options_of(parser) - (hidden if shown else set())


def is_variable(name: str) -> bool:
    known = OpenAiBlsSettings.__struct_fields__ + EngineSettings.__struct_fields__
    return name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() in known


def make_paths(folder: Path) -> None:
    """A model repository as it is committed, and what the commands say lies at /path/to, in `folder`."""
    for model in MODELS.values():
        (folder / "model_repository" / model.name).mkdir(parents=True)
        (folder / "model_repository" / model.name / "config.pbtxt").write_text(render(model))
    for name in ("checkpoint", "dataset", "adapter"):
        (folder / name).mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")


def take_build(arguments: list[str], folder: Path) -> None:
    """Read the options of a build, for TensorRT-LLM where they name no engine."""
    if "--model" in arguments and (arguments[-1] == "--model" or arguments[arguments.index("--model") + 1][0] == "-"):
        arguments.insert(arguments.index("--model") + 1, "MODEL")  # `--model ...` has lost its dots
    here = [re.sub(r"/path/to\b", str(folder), word) for word in arguments]
    words = here if {"--engine", "--remove"} & {*here} else [*here, "--engine", "tensorrt_llm"]
    build_command.wanted(parse("build", words))


def take(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a command line as its program does, and run nothing but the rendering of settings.

    Args:
        command: a line with a program of ours.
        folder: what `make_paths` made.
        monkeypatch: for the current folder.
    """
    found = program(command)
    assert found is not None, f"no program of ours: {command}"
    name, arguments = found
    words = [SCRIPTS[name], *arguments] if name in SCRIPTS else arguments
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OPENAI_BLS_MODEL_REPOSITORY", raising=False)
    if words == ["--version"]:
        return
    assert words[0] in {entry.name for entry in COMMANDS}, words[0]
    if words[0] == "build":
        take_build(words[1:], folder)
        return
    options = parse(words[0], words[1:])
    if words[0] == "serve":
        triton_flags(serve_command.serve_options(options))
    elif words[0] == "render":
        configure(folder / "model_repository", options.changes)
