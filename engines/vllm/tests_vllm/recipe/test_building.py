"""Builds for vLLM: what lands where, and what is refused before anything is written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError, Manifest, checkpoint_dir, load_manifest
from openai_bls_vllm.recipe.modules import place_modules
from openai_bls_vllm.recipe.options import VllmOptions
from openai_bls_vllm.record import VllmRecord
from tests.unit.builder.repositories import contents
from tests_tensorrt_llm.recipe.build_support import make_checkpoint
from tests_vllm.recipe.vllm_support import make_interpreter


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def built(repository: Path, model: Path, python: Path | str, **own: object) -> tuple[Manifest, list[str]]:
    said: list[str] = []
    force = bool(own.pop("force", False))
    options = BuildOptions(
        str(model),
        repository,
        engine="vllm",
        self_test=False,
        force=force,
        max_images=own.pop("max_images", None),  # type: ignore[arg-type]
        own=VllmOptions(engine_python=str(python), **own),  # type: ignore[arg-type]
    )
    return build(options, said.append), said


def refusal(repository: Path, model: Path, python: Path | str, **own: object) -> str:
    before = contents(repository)
    with pytest.raises(BuildError) as caught:
        built(repository, model, python, **own)
    assert contents(repository) == before
    return str(caught.value)


def test_an_engine(repository: Path, model: Path, tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    manifest, said = built(repository, model, python, quant="fp8", extra_engine_args={"gpu-memory-utilization": 0.5})
    folder = repository / "tensorrt_llm" / "1"
    assert load_manifest(folder) == manifest
    assert (manifest.engine, manifest.engine_python, manifest.max_model_len) == ("vllm", str(python), 777)
    record = VllmRecord.of(manifest)
    assert (record.version, record.world_size, record.quant) == ("0.32.0", 1, "fp8")
    assert record.extra_engine_args == {"gpu_memory_utilization": 0.5}
    # The file as it is: vLLM reads PyTorch's own, too.
    assert (folder / "checkpoint" / "pytorch_model.bin").read_bytes() == b"weights"
    # vLLM looks for the model's configuration there.
    names = {path.name for path in (folder / "tokenizer").iterdir()}
    assert {"tokenizer.json", "config.json"} <= names
    assert "config.json" not in {path.name for path in (repository / "openai_bls" / "1" / "tokenizer").iterdir()}
    assert "vLLM 0.32.0 on cpu" in said
    assert "is up to date" in built(repository, model, python, **_same(manifest))[1][-1]
    # Another version is another engine.
    other = make_interpreter(tmp_path / "other", "0.31.0")
    assert "tokenizer" in built(repository, model, other, **_same(manifest))[1]


def _same(manifest: Manifest) -> dict[str, object]:
    record = VllmRecord.of(manifest)
    return {"quant": record.quant, "extra_engine_args": record.extra_engine_args}


def test_what_vllm_refuses(repository: Path, model: Path, tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    said = refusal(repository, model, python, quant="none")
    assert said == f"vLLM 0.32.0 does not take {model}: Unknown quantization method: none."
    said = refusal(repository, model, python, extra_engine_args={"gpu-memory-utilisation": 0.5})
    assert said.endswith("which --extra-engine-args gives: the nearest name is gpu_memory_utilization")
    said = refusal(repository, model, python, extra_engine_args={"tensor-parallel-size": 2})
    assert said.endswith("--extra-engine-args may not have tensor-parallel-size: give --tp-size to the build")
    assert "takes float, not 'half'" in refusal(
        repository, model, python, extra_engine_args={"gpu_memory_utilization": "half"}
    )
    assert "no vLLM" in refusal(repository, model, sys.executable)
    assert "0.99.0" in refusal(repository, model, make_interpreter(tmp_path / "new", "0.99.0"))


def test_gpus(repository: Path, model: Path, tmp_path: Path) -> None:
    python = make_interpreter(tmp_path, gpus=2, memory=4)
    said = refusal(repository, model, python, tensor_parallel_size=3)
    assert said.startswith("--tp-size 3 and --pp-size 1 need 3 GPUs on this machine, and vLLM sees 2: lower them, or")
    assert "the weights do not fit: 0.0 GiB for each GPU, and Small GPU " in refusal(repository, model, python)
    _, lines = built(repository, model, python, force=True)
    assert any(line.startswith("in spite of --force: the weights do not fit") for line in lines)
    # Half of seven bytes each, and two machines.
    built(repository, model, python, tensor_parallel_size=2, extra_engine_args={"gpu_memory_utilization": 1.0})
    built(repository, model, python, tensor_parallel_size=4, extra_engine_args={"nnodes": 2})


def test_a_gguf_file(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert "--engine llama_cpp" in refusal(repository, file, make_interpreter(tmp_path))


def test_a_model_that_pools_brings_the_files_of_sentence_transformers(
    repository: Path, model: Path, tmp_path: Path
) -> None:
    modules = [
        {"idx": 0, "path": "", "type": "T"},
        {"idx": 1, "path": "1_Pooling", "type": "P"},
        {"path": "2_Normalize"},
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    python = make_interpreter(tmp_path)
    manifest, _ = built(repository, model, python, task="embed")
    assert VllmRecord.of(manifest).task == "embed"
    placed = repository / "tensorrt_llm" / "1" / "checkpoint"
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        assert (placed / name).read_bytes() == (model / name).read_bytes()
    assert checkpoint_dir(placed.parent, load_manifest(placed.parent)) == placed
    said = refusal(repository, model, python, task="score", max_images=1)
    assert said.startswith("--task score is without images")


@given(name=st.text(min_size=1) | st.sampled_from(["..", "../x", "/etc", "a/b", ".", "1_Pooling"]))
def test_folders_of_modules_are_beside_them(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("modules")
    source, target = folder / "source", folder / "target"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "1_Pooling" / "config.json").write_text("{}")
    target.mkdir()
    (source / "modules.json").write_bytes(msgspec.json.encode([{"path": name}]))
    before = contents(folder)
    if "/" in name or name in (".", ".."):
        with pytest.raises(BuildError, match=re.escape(repr(name))):
            place_modules(source, target)
    else:
        place_modules(source, target)
    added = {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {"source"}
    assert added == {"target"}
    assert {path: data for path, data in contents(folder).items() if path in before} == before
