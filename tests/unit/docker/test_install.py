"""docker/install.py on a Python that stands in for NVIDIA's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import llguidance
import llguidance.torch
import pytest

from tests.unit.docker import wheels
from tests.unit.docker.conftest import NVIDIA, ROOT, Index, nvidia_python

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    return nvidia_python(tmp_path / "python")


@pytest.fixture
def install(tmp_path: Path, site_packages: Path) -> Install:
    index = Index(tmp_path)
    python = tmp_path / "python" / "bin" / "python3"

    def run(wheel: Path, *may_replace: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), str(ROOT / "docker" / "install.py"), "--may-replace", *may_replace, "--", str(wheel)]
        return subprocess.run(command, env=index.settings, capture_output=True, text=True, check=False)

    return run


def versions(site_packages: Path) -> dict[str, str]:
    names = (path.name.removesuffix(".dist-info").rpartition("-") for path in site_packages.glob("*.dist-info"))
    return {name.replace("_", "-"): version for name, _, version in names}


def test_what_is_named_is_replaced_and_the_rest_stays(tmp_path: Path, site_packages: Path, install: Install) -> None:
    wheels.empty(tmp_path, "llguidance", "1.9.1")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "llguidance>=1.9", "numpy>=1.26"), "llguidance")
    assert done.returncode == 0, done.stderr
    assert "replaced: llguidance 0.7.29 by 1.9.1" in done.stdout
    assert versions(site_packages) == {**NVIDIA, "llguidance": "1.9.1", "ours": "1.0"}


def test_a_conflict_is_an_error_and_changes_nothing(tmp_path: Path, site_packages: Path, install: Install) -> None:
    wheels.empty(tmp_path, "numpy", "2.4.0")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "numpy>=2"), "llguidance")
    assert done.returncode == 1
    # pip's own words name both sides; ours say what to do.
    assert "ours 1.0 depends on numpy>=2" in done.stdout
    assert "numpy==1.26.4+nvidia" in done.stdout
    assert "take another TRITON_TAG" in done.stderr
    assert "MAY_REPLACE (now: llguidance)" in done.stderr
    assert versions(site_packages) == NVIDIA


def test_what_pip_cannot_be_told_to_keep_is_compared_afterwards(tmp_path: Path, install: Install) -> None:
    # 2.7.7build1 is no version by pip's rules, so it cannot be a constraint.
    wheels.empty(tmp_path, "python-apt", "3.0")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "python-apt>=3"))
    assert done.returncode == 1
    assert "python-apt 2.7.7build1" in done.stderr.splitlines()[-1]


def test_our_llguidance_has_what_tensorrt_llm_calls() -> None:
    """NVIDIA's image brings 0.7.29, which the Dockerfile replaces.

    What is called, in that order: `tensorrt_llm/_torch/pyexecutor/grammar_matcher.py` of TensorRT-LLM 1.2.
    """
    text = (ROOT / "demo" / "checkpoint" / "tokenizer.json").read_text()
    size = json.loads((ROOT / "demo" / "checkpoint" / "config.json").read_text())["vocab_size"]
    tokenizer = llguidance.LLTokenizer(text, n_vocab=size, eos_token=0)
    assert tokenizer.eos_token == 0
    for grammar in (
        llguidance.LLMatcher.grammar_from_regex("a+"),
        llguidance.LLMatcher.grammar_from_lark('start: "a"'),
        llguidance.LLMatcher.grammar_from_json_schema('{"type": "object"}'),
    ):
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        assert not matcher.is_error(), matcher.get_error()
        assert not matcher.is_stopped()
    bitmask = llguidance.torch.allocate_token_bitmask(1, size)
    llguidance.torch.fill_next_token_bitmask(matcher, bitmask, 0)
    (brace,) = tokenizer.tokenize_str("{")
    allowed = [token for token in range(size) if bitmask[0, token // 32] >> (token % 32) & 1]
    assert brace in allowed
    assert len(allowed) < size
    assert matcher.try_consume_tokens([brace]) == 1
    matcher.rollback(1)
    assert not matcher.is_error()
