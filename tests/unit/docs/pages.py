"""The pages of docs/ and the README, as tests read them: command lines, tables, pieces of code, links."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from openai_bls import __main__ as cli
from openai_bls.core.settings import ENV_PREFIX, OpenAiBlsSettings
from openai_bls.launcher.serve import ServeOptions, triton_flags
from openai_bls.launcher.smoke.command import build_parser as smoke_parser
from openai_bls.triton_models.config_writer import render
from openai_bls.triton_models.render_configs import configure
from openai_bls.triton_models.tensors import MODELS

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
# Commands of the image that run programs of build/, by docker/start.py; the others are openai_bls's.
IMAGE_COMMANDS = {"build": "build/engine.py", "verify": "build/verify.py"}
# Those that take no option of ours.
NOT_OURS = ("prepare", "tritonserver", "bash")


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
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name = words.pop(0).partition("=")[0]
        assert is_variable(name) or name == "MODEL", name
    for number, word in enumerate(words):
        after = [part for part in words[number + 1 :] if part != "..."]
        if re.fullmatch(r"build/\w+\.py", word) and words[number - 1].rpartition("/")[2].startswith("python"):
            return word, after
        if word == "-m" and after and re.match(r"openai_bls$|benchmarks\.load", after[0]):
            return after[0], after[1:]
        image = re.fullmatch(r"openai_bls:[\w.]+", word) or word == "build-engine"
        if image and words[0] == "docker" and "run" in words[:3]:
            command, *rest = ["build", *after] if word == "build-engine" else (after or ["serve"])
            if command in IMAGE_COMMANDS:
                return IMAGE_COMMANDS[command], rest
            return None if command in NOT_OURS else ("openai_bls", [command, *rest])
    return None


@cache
def script(path: str) -> ModuleType:
    """A program of build/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"documented_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


@cache
def build_options() -> set[str]:
    return options_of(script("build/engine.py")._parser())


@cache
def serve_options() -> set[str]:
    subcommands = next(item for item in cli.build_parser()._actions if isinstance(item, argparse._SubParsersAction))
    return options_of(subcommands.choices["serve"])


def is_variable(name: str) -> bool:
    return name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() in OpenAiBlsSettings.__struct_fields__


def make_paths(folder: Path) -> None:
    """A model repository as it is committed, and what the commands say lies at /path/to, in `folder`."""
    for model in MODELS.values():
        (folder / "model_repository" / model.name).mkdir(parents=True)
        (folder / "model_repository" / model.name / "config.pbtxt").write_text(render(model))
    for name in ("checkpoint", "dataset", "adapter"):
        (folder / name).mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")


def take_build(arguments: list[str], folder: Path) -> None:
    """Read the options of build/engine.py, for TensorRT-LLM where they name no engine."""
    if "--model" in arguments and (arguments[-1] == "--model" or arguments[arguments.index("--model") + 1][0] == "-"):
        arguments.insert(arguments.index("--model") + 1, "MODEL")  # `--model ...` has lost its dots
    here = [re.sub(r"/path/to\b", str(folder), word) for word in arguments]
    script("build/engine.py").parse(here if {"--engine", "--remove"} & {*here} else [*here, "--engine", "tensorrt_llm"])


def take(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a command line as its program does: everything but the start of a server.

    Args:
        command: a line with a program of ours.
        folder: what `make_paths` made.
        monkeypatch: to keep `serve` from starting a server.
    """
    found = program(command)
    assert found is not None, f"no program of ours: {command}"
    name, arguments = found
    started: list[ServeOptions] = []

    def serve(options: ServeOptions) -> int:
        started.append(options)
        return 0

    def take_launcher(words: list[str]) -> None:
        monkeypatch.setattr(cli, "serve", serve)
        monkeypatch.setattr(cli, "doctor", lambda *_: 0)
        monkeypatch.setattr(cli, "_reload", lambda *_: 0)
        monkeypatch.chdir(folder)
        monkeypatch.delenv("OPENAI_BLS_MODEL_REPOSITORY", raising=False)
        if words[0] == "render":
            configure(folder / "model_repository", cli.build_parser().parse_args(words).changes)
        else:
            assert cli.main(words) == 0

    parsers: dict[str, Any] = {
        "build/engine.py": lambda words: take_build(words, folder),
        "build/smoke.py": smoke_parser(folder).parse_args,
        "openai_bls": take_launcher,
    }
    if name.startswith("benchmarks."):
        parsers[name] = importlib.import_module(name)._parser().parse_args
    parsers.get(name, lambda words: script(name).parse(words))(arguments)
    for options in started:
        triton_flags(options)
