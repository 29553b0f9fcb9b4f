"""Defaults of the engine's scheduler, held against those of the real `vllm serve` on GPUs that are pretended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls_vllm.record import VllmRecord
from tests.paths import DEMO
from tests_vllm.vllm_python import output_of

pytestmark = pytest.mark.timeout(1800)

GIB = 1 << 30
DEVICES = {
    "NVIDIA H100 80GB HBM3": (80 * GIB, 8192),
    "NVIDIA H200": (141 * GIB, 8192),
    # 8,192 in older versions.
    "NVIDIA B200": (180 * GIB, None),
    "NVIDIA A100-SXM4-80GB": (80 * GIB, 2048),
    "NVIDIA L4": (24 * GIB, 2048),
}
"""Device → its memory and vLLM's batched tokens."""


def test_they_are_those_of_vllm_serve(warm_python: str, tmp_path: Path) -> None:
    folder = tmp_path / "1"
    shutil.copytree(DEMO, folder / "checkpoint")
    record = VllmRecord(version="0.32.0").fields()
    manifest = Manifest(
        engine="vllm", model_name="demo", max_model_len=2048, max_batch_size=64, created=1, record=record
    )
    write_manifest(folder, manifest)
    script = Path(__file__).with_name("serve_defaults.py")
    output = output_of(
        warm_python,
        script,
        str(folder),
        str(folder / "checkpoint"),
        given=json.dumps([[name, memory] for name, (memory, _) in DEVICES.items()]),
    )
    for (name, (_, tokens)), (ours, theirs) in zip(DEVICES.items(), json.loads(output), strict=True):
        assert ours == theirs, name
        assert ours["max_num_seqs"] == 64
        assert tokens in (None, ours["max_num_batched_tokens"]), name
