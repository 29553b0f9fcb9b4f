"""README.md, docs/docker.md and docs/kubernetes.md: their commands of ours are ones that the parsers take.

docs/serving.md, docs/migrate.md and docs/models.md have tests of their own.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from openai_bls import __main__ as cli
from openai_bls.launcher.smoke.command import build_parser as smoke_parser

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/docker.md", "docs/kubernetes.md")
# What the image's commands are, by docker/start.py.
OF_THE_IMAGE = {"build", "verify", "serve", "doctor", "render", "prepare"}


@cache
def script(name: str) -> ModuleType:
    """One of the programs in build/."""
    spec = importlib.util.spec_from_file_location(f"documented_{name}", ROOT / "build" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(page: str) -> Iterator[str]:
    """The command lines of a page's code, each in one line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        yield from (line.strip() for line in re.sub(r"\\\n\s*", "", block).splitlines())


def ours(line: str) -> tuple[str, list[str]] | None:
    """The program of ours in a command line, and its arguments; None if there is none."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a line of a program in another language, or of a body that goes over several lines
        return None
    for number, word in enumerate(words):
        after = [part for part in words[number + 1 :] if part != "..."]
        if re.fullmatch(r"build/(engine|verify|smoke)\.py", word):
            return word.removeprefix("build/").removesuffix(".py"), after
        if word == "-m" and after[:1] == ["openai_bls"]:
            return "openai_bls", after[1:]
        if (
            words[0] == "docker"
            and "run" in words[:3]
            and (re.fullmatch(r"openai_bls:[\w.]+", word) or word == "build-engine")
        ):
            arguments = ["build", *after] if word == "build-engine" else after
            return ("image", arguments) if arguments else None
    return None


COMMANDS = [(page, *found) for page in PAGES for line in lines(page) if (found := ours(line)) is not None]


def take(program: str, arguments: list[str]) -> None:
    """Read the arguments as `program` does."""
    if program == "image":
        command, *rest = arguments
        assert command in OF_THE_IMAGE, f"the image has no command {command}"
        if command == "prepare":
            assert not rest
            return
        scripts = {"build": "engine", "verify": "verify"}
        if command == "build" and "--engine" not in rest:
            # The engine that is chosen where TensorRT-LLM and a GPU are.
            rest += ["--engine", "tensorrt_llm"]
        if command in scripts:
            return take(scripts[command], rest)
        return take("openai_bls", [part for part in arguments if part != "--"])
    # "--model ..." of the docs has lost its dots.
    if program == "engine" and "--model" in arguments:
        place = arguments.index("--model") + 1
        if place == len(arguments) or arguments[place].startswith("--"):
            arguments = [*arguments[:place], "MODEL", *arguments[place:]]
    parsers: dict[str, Callable[[list[str]], object]] = {
        "engine": lambda given: script("engine").parse(given),
        "verify": lambda given: script("verify").parse(given),
        "smoke": lambda given: smoke_parser(ROOT / "model_repository").parse_args(given),
        "openai_bls": lambda given: cli.build_parser().parse_known_args(given),
    }
    parsers[program](arguments)


@pytest.mark.parametrize(("page", "program", "arguments"), COMMANDS)
def test_every_command_is_understood(page: str, program: str, arguments: list[str]) -> None:
    take(program, arguments)


def test_commands_were_found() -> None:
    found = {(page, program) for page, program, _ in COMMANDS}
    assert {("README.md", "engine"), ("docs/docker.md", "image"), ("docs/docker.md", "smoke")} <= found


def test_a_command_that_is_not_understood_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        take("image", ["build", "--no-such-option"])
    with pytest.raises(AssertionError):
        take("image", ["bild"])
