"""Every code block of the pages runs in tests/triton/operation/test_docs.py, or is marked with what it needs."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.blocks import CLIENTS, MARKED, NEEDS, RUN, SHOWN, all_blocks, at, client_files, matches, may_run
from tests.unit.docs.pages import PAGES, text

BLOCKS = all_blocks()


def test_every_block_is_found() -> None:
    for page in PAGES:
        fences = sum(line.startswith("```") for line in text(page).splitlines())
        found = [block for block in BLOCKS if block.page == page]
        assert fences == 2 * (len(found) + sum(block.output is not None for block in found)), page
    assert text("README.md").count("```bash") > 0


def test_every_block_runs_or_is_marked() -> None:
    for block in BLOCKS:
        assert block.language in (*RUN, *MARKED, *SHOWN), f"{block.name}: {block.language} is no language of ours"
        assert set(block.needs) <= set(NEEDS), f"{block.name}: {block.needs}"
        ran = block.language in SHOWN or may_run(block)
        assert ran or block.needs, f"{block.name} does not run beside a test's server: say what it needs"
        # A marker on what does not run would say nothing.
        assert not block.needs or block.language not in SHOWN, block.name


def test_every_need_is_used() -> None:
    assert {need for block in BLOCKS for need in block.needs} == set(NEEDS)


def test_a_marker_is_before_a_block() -> None:
    for page in PAGES:
        markers = text(page).count("<!-- needs: ")
        assert markers == sum(bool(block.needs) for block in BLOCKS if block.page == page), page


_SHELL = re.compile(r"^( *)```bash\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_REDIRECTED_HERE = r"(?<![<>&=-])>>? *(?![ >&/~$\"'(])[\w.]"
_LEFT_HERE = re.compile(_REDIRECTED_HERE + r"|\b(?:ssh-keygen|openssl (?:req|genrsa|genpkey))\b", re.ASCII)


@pytest.mark.parametrize("page", PAGES)
def test_no_block_leaves_files_in_the_clone(page: str) -> None:
    """Least of all keys: what a block writes lies in a scratch folder, or outside, by its path."""
    for _, code in _SHELL.findall(text(page)):
        assert not _LEFT_HERE.search(code) or "$(mktemp -d)" in code, code


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_renders_can_be_undone(page: str) -> None:
    """In a clone the files that it writes are tracked ones."""
    renders = any(re.search(r"\brender\b.* --set ", code) for _, code in _SHELL.findall(text(page)))
    assert not renders or "git checkout model_repository" in text(page)


@pytest.mark.parametrize(
    ("code", "leaves"),
    [
        ("ssh-keygen -f id", True),
        ("openai-bls key a >> keys", True),
        ("echo a >b", True),
        ("echo a > /tmp/b", False),
        ("echo a >> ~/b", False),
        ("cat <<EOF | jq '.a => b'", False),
        ("command 2>&1", False),
    ],
)
def test_what_leaves_files(code: str, leaves: bool) -> None:
    assert bool(_LEFT_HERE.search(code)) == leaves


def test_ports() -> None:
    ports = {8000: 1, 8001: 2, 8002: 3, 9000: 4}
    assert at("localhost:9000/v1 127.0.0.1:8001 localhost:9100", ports) == "127.0.0.1:4/v1 127.0.0.1:2 localhost:9100"


@pytest.mark.parametrize(("expected", "fits"), [("a\n", True), ("a\n...\nc", False), ("b", False), ("...", True)])
def test_output(expected: str, fits: bool) -> None:
    assert matches(expected, "a\n") is fits


def test_clients_are_short_and_listed() -> None:
    page = (CLIENTS / "README.md").read_text(encoding="utf-8")
    assert len(client_files()) > 7
    for path in client_files():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 30, path.name
        assert f"[{path.name}]({path.name})" in page
