"""The self-test of a build: what it records, and what it refuses with the last engine in place."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openai_bls.core.manifest import load_manifest
from openai_bls_transformers.record import EmbeddedRecord
from tests.unit.builder.builds import answer, refusal, run

BLIND_IN_BATCHES = """
    import torch
    from transformers import Qwen2ForCausalLM

    class Model(Qwen2ForCausalLM):
        # Continuous batching passes a cache of another kind.
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
                output.logits = output.logits.roll(1, -1)
            return output
"""
DEADLY = """
    import os, signal
    from transformers import Qwen2ForCausalLM

    class Model(Qwen2ForCausalLM):
        def __init__(self, config):
            os.kill(os.getpid(), signal.{})
"""


def give_code(source: Path, code: str) -> None:
    """Make the checkpoint one with Python code of its own."""
    (source / "modeling_own.py").write_text(textwrap.dedent(code))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling_own.Model"}})
    )


def test_the_record(source: Path, repository: Path) -> None:
    manifest, lines = run(source, repository, self_test=True)
    found = EmbeddedRecord.of(manifest).self_test
    assert found is not None
    assert (found.device, found.dtype, found.runner, found.attention) == (
        "cpu",
        "float32",
        "continuous_batching",
        "sdpa",
    )
    assert found.versions == {"torch": torch.__version__, "transformers": manifest.builder["transformers"]}
    assert [len(ids) for ids in found.token_ids] == [8, 8, 8]
    assert "self-test: passed by continuous_batching with attention sdpa, in float32 on cpu" in lines
    assert all(len(file.sha256) == 64 for file in manifest.files.values())


def test_it_can_be_left_to_the_load(source: Path, repository: Path) -> None:
    manifest, _ = run(source, repository)
    assert EmbeddedRecord.of(manifest).self_test is None
    assert len(answer(repository)) == 8
    assert EmbeddedRecord.of(run(source, repository, self_test=True)[0]).self_test is not None


def test_the_next_runner_is_taken(source: Path, repository: Path) -> None:
    give_code(source, BLIND_IN_BATCHES)
    manifest, lines = run(source, repository, trust_remote_code=True, self_test=True)
    tested = EmbeddedRecord.of(manifest).self_test
    assert tested is not None
    assert tested.runner == "dynamic_cache"
    assert any(line.startswith("self-test: not continuous_batching with attention sdpa") for line in lines)
    assert len(answer(repository)) == 8


def test_a_model_that_computes_nothing(source: Path, repository: Path) -> None:
    run(source, repository)
    before = load_manifest(repository / "tensorrt_llm" / "1")
    path = source / "model.safetensors"
    # Each weight is a finite number, and what is computed of them is not.
    held = load_file(path)
    held["model.layers.0.mlp.down_proj.weight"].mul_(1e38)
    save_file(held, path, {"format": "pt"})
    assert "the model computes NaN or infinity in float32: its weights are corrupt" in refusal(
        source, repository, self_test=True
    )
    assert load_manifest(repository / "tensorrt_llm" / "1") == before
    assert len(answer(repository)) == 8


@pytest.mark.parametrize(
    ("signal", "expected"),
    [("SIGKILL", "killed, which is mostly for lack of memory"), ("SIGSEGV", "the self-test crashed (exit code -11)")],
)
def test_a_process_that_dies(source: Path, repository: Path, signal: str, expected: str) -> None:
    give_code(source, DEADLY.format(signal))
    assert expected in refusal(source, repository, trust_remote_code=True, self_test=True)
