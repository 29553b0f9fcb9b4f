"""Commands that install our own distributions name files: an index may have anybody's package of that name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from openai_bls.core.installation import install_command
from tests.paths import ROOT

_COMMAND = re.compile(r"pip install ([^`\n]*)")
_OURS = re.compile(r"openai[-_.]bls([-_.](transformers|vllm|llama[-_.]cpp|tensorrt[-_.]llm))?", re.IGNORECASE)
EXTRAS = ("", "engine", "llama-cpp", "tensorrt-llm", "vllm", "server", "smoke", "tracing", "kv-events")


def by_name(words: str) -> list[str]:
    """Our distributions that a pip command takes from an index."""
    found = []
    for word in words.replace("'", " ").replace('"', " ").split():
        try:
            name = Requirement(word).name
        except InvalidRequirement:
            continue
        if _OURS.fullmatch(name) and not Path(word.partition("[")[0]).suffix:
            found.append(word)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_commands_name_files(extra: str, tmp_path: Path) -> None:
    for root in (None, tmp_path):
        said = install_command(extra, root)
        assert _COMMAND.search(said), said
        assert not by_name(_COMMAND.findall(said)[0])
    engine = re.search(r"engines/(\w+)", install_command(extra))
    assert engine is None or (ROOT / "engines" / engine[1] / "pyproject.toml").is_file()


def test_no_page_and_no_hint_has_the_bare_name() -> None:
    command = ["git", "ls-files", "*.md", "*.py", "*.toml", "Makefile"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split() if "/tests" not in f"/{name}"]
    assert len(files) > 500
    commands = [(name, words) for name in files for words in _COMMAND.findall((ROOT / name).read_text())]
    assert len(commands) > 20
    # The page that says why not has it as the example.
    assert [name for name, words in commands if by_name(words)] == ["docs/guides/install.md"]
