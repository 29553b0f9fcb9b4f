"""README.md and docs/: every command of ours is one that its program takes, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openai_bls.core.manifest import BuildError
from openai_bls.core.settings import SettingsError
from tests.unit.docs.pages import (
    PAGES,
    READMES,
    RESULTS,
    ROOT,
    commands,
    make_paths,
    program,
    serve_options,
    take,
    text,
    without_blocks,
)

COMMANDS = [(page, command) for page in PAGES for command in dict.fromkeys(commands(page))]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_understood(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_paths(tmp_path)
    take(command, tmp_path, monkeypatch)


def test_commands_of_every_program_were_found() -> None:
    found = {(page, (program(command) or ("",))[0]) for page, command in COMMANDS}
    assert {("engines/vllm/docs/vllm.md", "openai_bls"), ("docs/guides/migrate.md", "build/engine.py")} <= found
    assert {("docs/serving.md", "build/smoke.py"), ("docs/operations/docker.md", "openai_bls")} <= found
    assert {("docs/serving.md", "openai_bls"), ("engines/tensorrt_llm/docs/models.md", "build/engine.py")} <= found


@pytest.mark.parametrize(
    "command",
    [
        "python build/engine.py --model m --tp 2",
        "python build/engine.py --model m --quant int3",
        "python build/verify.py --speed",
        "python build/smoke.py --speed",
        "python -m openai_bls serve --world-sizes 2",
        "python -m openai_bls render --set tensorrt_llm.speed=2",
        "python tools/fill_template.py -i config.pbtxt",
        "OPENAI_BLS_SPEED=2 python -m openai_bls serve",
        "docker run --rm openai_bls:26.07 build --no-such-option",
        "docker run --rm openai_bls:26.07 bild",
    ],
)
def test_a_command_that_is_not_understood_is_noticed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_paths(tmp_path)
    with pytest.raises((SystemExit, BuildError, SettingsError, AssertionError)):
        take(command, tmp_path, monkeypatch)


def test_the_pages_on_serving_name_every_option() -> None:
    named = "".join(map(text, ("docs/serving.md", "docs/operations/multi-gpu.md", "docs/operations/security.md")))
    assert {option for option in serve_options(shown=True) if "_" not in option and option != "--help"} <= {
        *re.findall(r"--[a-z][a-z-]*", named), "--tensorrt-llm-model-name",
    }  # fmt: skip


@pytest.mark.parametrize("page", [*PAGES, *READMES, *RESULTS])
def test_links(page: str) -> None:
    for link in set(re.findall(r"\]\(([^)]+)\)", text(page))):
        if not re.match(r"https?://", link):
            path, _, anchor = link.partition("#")
            there = (ROOT / page).parent / path if path else ROOT / page
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(str(page.resolve().relative_to(ROOT))), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
