"""Nothing that we write installs the project by a bare name: no package index has it, and anybody may register it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from openai_bls import __version__
from openai_bls.core import installing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
ENGINES = sorted(path.parent.name for path in ROOT.glob("engines/*/pyproject.toml"))
NAMES = {canonicalize_name(name): name for name in ("openai_bls", *(f"openai_bls_{engine}" for engine in ENGINES))}
INSTALLERS = (
    "pip install", "pip3 install", "python3 -m pip --quiet install", "pip download", "uv pip install", "uv add",
    "uv tool install", "uvx", "pipx install", "pipx run",
)  # fmt: skip

_INSTALLER = re.compile(
    r"\b(?:pip3? [^\n`]{0,40}?\b(?:install|download|wheel)\b|uv (?:add|tool install)\b|uvx\b|pipx\b)"
)
_END = re.compile(r"[\n`;|)]|&&|# ")
_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*?)(?:\[[\w,-]*\])?(?:[=<>~!@].*)?")
_WITH_EXTRA = re.compile(r"(?<![\w./-])(openai[-_.]bls\w*)\[[a-z]", re.IGNORECASE)


def bare_names(text: str) -> Iterator[str]:
    """Names of ours that `text` tells to install, or gives an extra, without a file that they come from."""
    for found in _INSTALLER.finditer(text):
        for word in _END.split(text[found.end() :], maxsplit=1)[0].split():
            requirement = _REQUIREMENT.fullmatch(word.strip("'\",:"))
            if requirement and canonicalize_name(requirement[1]) in NAMES:
                yield requirement[1]
    yield from (found[1] for found in _WITH_EXTRA.finditer(text) if canonicalize_name(found[1]) in NAMES)


def _texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield name, content.decode("utf-8", "replace")


def test_no_file_tells_to_install_a_bare_name() -> None:
    assert {name: found for name, text in _texts() if (found := [*bare_names(text)])} == {}


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, str, str]:
    """An installer's command, a name of ours in one of its spellings, and its extras."""
    name = re.sub("_", lambda _: draw(st.sampled_from("-_.")), draw(st.sampled_from(sorted(NAMES.values()))))
    name = "".join(draw(st.sampled_from((letter.lower(), letter.upper()))) for letter in name)
    flags = draw(st.lists(st.sampled_from(("--quiet", "-U", "numpy", "'numpy<2'", "--no-deps")), max_size=3))
    extra = draw(st.sampled_from(("", "[smoke]", "[server,tracing]")))
    return " ".join([draw(st.sampled_from(INSTALLERS)), *flags]), name, extra


@given(commands(), st.sampled_from(("", "==0.1.0", ">=0.1,<2")), st.sampled_from(("{}", "'{}'", '"{}"')), st.booleans())
def test_a_bare_name_is_found(drawn: tuple[str, str, str], version: str, quotes: str, code: bool) -> None:
    command, name, extra = drawn
    line = f"{command} {quotes.format(name + extra + version)}"
    assert name in bare_names(f"Do this: `{line}`, then that." if code else f"{line}\nopenai-bls serve\n")


@given(commands(), st.sampled_from(("dist/", "", "/wheels/")))
def test_a_file_is_no_bare_name(drawn: tuple[str, str, str], folder: str) -> None:
    command, name, extra = drawn
    assert not [*bare_names(f"{command} '{folder}{name}-0.1.0-py3-none-any.whl{extra}' -e . && openai-bls serve")]


@pytest.mark.parametrize("tree", [True, False])
def test_the_advice_has_no_bare_name(tree: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what the tree has, or the files that `make wheels` writes of it."""
    if not tree:
        monkeypatch.setattr(installing, "_TREE", tmp_path)
    advice = [installing.with_extra(), installing.with_extra("smoke"), *map(installing.with_engine, ENGINES)]
    for text in advice:
        assert _INSTALLER.search(text)
        assert not [*bare_names(text)]
        for folder in re.findall(r"-e (engines/\w+)", text):
            assert (ROOT / folder / "pyproject.toml").is_file()
        for distribution, version in re.findall(r"(openai_bls\w*?)-([\d.]+)-py3-none-any\.whl", text):
            assert (distribution in NAMES.values(), version) == (True, __version__)
    assert any(".whl" in text for text in advice) != tree


def test_no_extra_installs_a_name_of_ours() -> None:
    """pip would look for it on an index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    texts = [text for requirements in extras.values() for text in requirements]
    assert texts
    assert not [text for text in texts for _ in bare_names(f"pip install '{text}'")]
