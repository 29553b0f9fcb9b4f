"""Engines for the fake TensorRT-LLM, as the builder leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from openai_bls.core.manifest import Manifest, record, write_manifest
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, Flow
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

GPU = "NVIDIA H100 80GB HBM3"
COMPUTE_CAPABILITY = "9.0"


def write_fake_engine(
    version_dir: Path, checkpoint: Path, flow: Flow, api: Api, *, max_model_len: int, max_batch_size: int
) -> Path:
    """An engine of `checkpoint` for one of the flows.

    Args:
        version_dir: must not exist; returned.
        checkpoint: a Hugging Face directory with its weights.
        flow: of TensorRT-LLM.
        api: the fake's.
        max_model_len: tokens of prompt and output together.
        max_batch_size: sequences.
    """
    built = flow == "tensorrt"
    place, engine = version_dir / "checkpoint", version_dir / "engine"
    shutil.copytree(checkpoint, place, ignore=shutil.ignore_patterns("*.safetensors") if built else None)
    if built:
        engine.mkdir()
        workspace = version_dir / "workspace"
        workspace.mkdir()
        api.build(
            BuildSpec(
                model=checkpoint,
                output=engine,
                workspace=workspace,
                max_batch_size=max_batch_size,
                max_input_len=max_model_len,
                max_seq_len=max_model_len,
                max_num_tokens=max_model_len,
                gather_logits=True,
            )
        )
        shutil.rmtree(workspace)
    fields: dict[str, Any] = {"gpu": GPU, "compute_capability": COMPUTE_CAPABILITY, "gather_logits": True}
    manifest = Manifest(
        engine="tensorrt_llm",
        model_name=checkpoint.name,
        max_model_len=max_model_len,
        max_batch_size=max_batch_size,
        created=1,
        files={path.name: record(path) for path in place.iterdir() if path.is_file()},
        engine_files={path.name: record(path) for path in engine.iterdir()} if built else {},
        record=TensorRtLlmRecord(
            version=api.version_text, flow=flow, max_input_len=max_model_len, **(fields if built else {})
        ).fields(),
    )
    write_manifest(version_dir, manifest)
    return version_dir
