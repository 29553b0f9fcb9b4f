"""docs/serving.md: every command in it is one that its parser takes, and every option is in it."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from openai_bls import __main__ as cli
from openai_bls.launcher.ranks import RankOptions
from openai_bls.launcher.serve import ServeOptions, triton_flags
from openai_bls.launcher.smoke.command import build_parser

TEXT = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line.strip()
]


def words(command: str, *program: str) -> list[str] | None:
    """A command's arguments, if it is one of `program`."""
    found = shlex.split(command, comments=True)
    return found[len(program) :] if found[: len(program)] == list(program) else None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = words(command, "python", "build/smoke.py")
    if smoke is not None:
        build_parser(Path("model_repository")).parse_args(smoke)
        return
    arguments = words(command, "python", "-m", "openai_bls")
    assert arguments is not None, "neither the launcher nor the smoke test"
    if arguments[0] == "render":
        # Its folder is not here.
        cli.build_parser().parse_args(arguments)
        return
    seen: list[ServeOptions] = []

    def take(options: ServeOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(cli, "serve", take)
    monkeypatch.setattr(cli, "doctor", lambda *_: 0)
    assert cli.main(arguments) == 0
    for options in seen:
        triton_flags(options)


def test_a_command_that_is_not_understood_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        test_every_command_is_understood("python -m openai_bls serve --world-sizes 2", monkeypatch)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {action.option_strings[0] for action in parser._actions if action.option_strings}


def test_every_option_is_named() -> None:
    subcommands = next(a for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    serve: argparse.ArgumentParser = subcommands.choices["serve"]
    missing = {option for option in options_of(serve) - {"-h"} if option not in TEXT}
    assert not missing
    assert {f"--{name.replace('_', '-')}" for name in RankOptions.__dataclass_fields__} - options_of(serve) == {
        "--engine-names",
        "--mpirun-args",
    }
