"""Wherever a user writes a name, one with a mistake is answered by the name that was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.commands import nearest
from openai_bls.commands.main import REFUSED, main
from openai_bls.commands.table import COMMANDS
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.nearest import did_you_mean
from openai_bls.core.settings import _ENVIRONMENT_ONLY, OpenAiBlsSettings, SettingsError, load
from openai_bls.engines.registry import names, parse_options
from openai_bls.launcher.variables import unknown_variables
from openai_bls.output.detect import TOOL_FORMATS, detect
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.models import MODELS

SETTINGS = [name for name in OpenAiBlsSettings.__struct_fields__ if name not in _ENVIRONMENT_ONLY]


class Place(NamedTuple):
    """Names of one kind, and the refusal of one that there is not; None if it is taken."""

    names: list[str]
    ask: Callable[[str], str | None]


def refusal(run: Callable[[], object]) -> str | None:
    try:
        run()
    except (SettingsError, EngineLoadError, ValueError) as error:
        return str(error)
    return None


def variable(name: str) -> str | None:
    return "".join(unknown_variables({name: "1"})).replace("mean OPENAI_BLS_", "mean ") or None


def options() -> list[str]:
    return [option for option in nearest._visible(parser()) if option.startswith("--")]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    next(command for command in COMMANDS if command.name == "serve").load().add_arguments(made)
    return made


NOWHERE = Path("no-such-repository")
PLACES = {
    "command": Place([command.name for command in COMMANDS], nearest.unknown_command),
    "option": Place(options(), lambda name: nearest.unknown("serve", parser(), [name])),
    "setting": Place(SETTINGS, lambda name: refusal(lambda: load(OpenAiBlsSettings, {name: "1"}, {}))),
    "setting of render": Place(SETTINGS, lambda name: refusal(lambda: configure(NOWHERE, [f"openai_bls.{name}=1"]))),
    "model of render": Place([*MODELS], lambda name: refusal(lambda: configure(NOWHERE, [f"{name}.instances=1"]))),
    "variable": Place([name.upper() for name in SETTINGS], lambda name: variable(f"OPENAI_BLS_{name}")),
    "engine": Place(list(names()), lambda name: refusal(lambda: parse_options({"engine": name}))),
    "form of calls": Place([*TOOL_FORMATS], lambda name: refusal(lambda: detect(None, tool_call_parser=name))),
}


@st.composite
def mistakes(draw: st.DrawFn) -> tuple[Place, str, str]:
    """A place, a name of it, and that name with a letter too many, too few, wrong, or in its neighbour's place."""
    place = PLACES[draw(st.sampled_from([*PLACES]))]
    name = draw(st.sampled_from([one for one in place.names if len(one) > 5]))
    at = draw(st.integers(len(name) // 2, len(name) - 2))
    begin, letter, end = name[:at], name[at], name[at + 1 :]
    written = draw(st.sampled_from([f"Q{letter}{end}", end, f"Q{end}", f"{end[0]}{letter}{end[1:]}"]))
    return place, name, begin + written


@given(mistakes())
def test_the_name_that_was_meant(drawn: tuple[Place, str, str]) -> None:
    place, name, written = drawn
    if written in place.names:
        return
    said = place.ask(written)
    assert said is not None
    meant = said.partition("did you mean ")[2].split("?")[0]
    # Another may be as near.
    assert meant == name or meant in place.names
    assert "known are" not in said


@given(st.sampled_from(options()), st.data())
def test_words_of_an_option_name_it(option: str, data: st.DataObject) -> None:
    """`--port` names all options of a port."""
    words = option.removeprefix("--").split("-")
    some = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=len(words), unique=True))
    asked = "--" + "-".join(some)
    if asked not in options() and not did_you_mean(asked, options()):
        assert option in nearest.unknown("serve", parser(), [asked])


@pytest.mark.parametrize("words", [[], ["--bogus"], ["serv"], ["doctor", "--port", "1"], ["key"]])
def test_an_error_of_the_command_line_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == REFUSED
    assert re.fullmatch(r"openai-bls[ a-z]*: error: [^\n]+\n", capsys.readouterr().err)
