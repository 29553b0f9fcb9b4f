"""The recorded tables: the fake and the recorder agree with them, and our tensors with the official ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from openai_bls.triton_models.tensors import models
from openai_bls.triton_models.tensors.declaration import Model, Tensor
from openai_bls.triton_models.tensors.models import MODELS
from tests_tensorrt_llm.contracts import record
from tests_tensorrt_llm.contracts.tables import VERSIONS as TABLES
from tests_tensorrt_llm.contracts.tables import OfficialModel, OfficialTensor, official, signatures
from tests_tensorrt_llm.engine.fake_support import VERSIONS, environment, patched

# Not in the official configs of 0.20 and later, and why we have them.
NOT_OFFICIAL: dict[str, dict[str, str]] = {
    "tensorrt_llm": {
        "min_length": "min_tokens's name up to 0.19",
        "random_seed": "seed's name up to 0.19",
        "decode_context": "ours: ids before a stream's tokens, for postprocessing",
        "decode_final": "ours: whether a stream's tokens are the last",
    },
    "preprocessing": {
        "PROMPT_REQUEST": "ours: a whole request of openai_bls, by BLS",
        "PROMPT_RESULT": "ours: its answer",
    },
    "postprocessing": {
        "DECODE_CONTEXT": "ours: from decode_context",
        "DECODE_FINAL": "ours: from decode_final",
        "SKIP_SPECIAL_TOKENS": "ours: a parameter of the official postprocessing",
        **dict.fromkeys([*models.PASSED_ON, *(f"OUT_{name}" for name in models.PASSED_ON)], "up to 0.16"),
    },
    "ensemble": {
        "min_length": "min_tokens's name up to 0.19",
        "random_seed": "seed's name up to 0.19",
    },
}
OLDER_DIMS = {("IMAGE_SIZES", "0.20"): (2,)}
# Required in the official configs, optional in ours: what is left out is told by other inputs, or refused by name.
RELAXED: dict[str, set[str]] = {
    "tensorrt_llm": {"input_lengths", "request_output_len"},
    "preprocessing": {"QUERY", "REQUEST_OUTPUT_LEN"},
    "postprocessing": {"SEQUENCE_LENGTH"},
    "ensemble": {"text_input", "max_tokens"},
}
OFFICIAL_MODELS: tuple[OfficialModel, ...] = ("tensorrt_llm", "preprocessing", "postprocessing", "ensemble")


@pytest.mark.parametrize("version", [*VERSIONS, "1.3.0rc20", "1.3.0rc21", "1.4.0rc1"])
def test_the_fake_is_as_recorded(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patched(environment(version)):
        assert record.main(["--check", "--no-run"]) == 0
    assert "pass: nothing differs that is recorded; not looked at: config.pbtxt" in capsys.readouterr().out


def test_without_the_package_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main(["--check"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("--check: tensorrt_llm is not installed in this Python; run it in an image")


def test_the_fake_gives_the_tokens_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    with patched(environment("1.2.1")):
        assert record.main(["--check"]) == 0
    assert "\ntwo tokens     pass (demo/checkpoint, as transformers has them)\n" in capsys.readouterr().out


def test_differences_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorder finds each kind of thing that a table has and the package lacks."""
    table = signatures("1.2")
    classes, functions = table["classes"], table["functions"]
    classes["SamplingParams"]["fields"]["gone"] = {"default": None}
    classes["SamplingParams"]["private"].append("_gone")
    classes["KvCacheConfig"]["fields"]["enable_block_reuse"]["default"] = False
    classes["Gone"] = {"module": "tensorrt_llm.llmapi", "kind": "dataclass", "fields": {}}
    classes["QuantAlgo"]["members"].append("GONE")
    functions["LLM.generate_async"]["parameters"]["gone"] = {"default": None}
    functions["LLM.gone"] = {"parameters": {}}
    table["attributes"]["RequestOutput"]["names"].append("gone")
    path = tmp_path / "table.json"
    path.write_text(record.to_json(table))
    with patched(environment("1.2.1")):
        assert record.main(["--check", str(path), "--no-run"]) == 1
    listed = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("differs")}
    assert listed == {
        *("SamplingParams.gone", "SamplingParams._gone", "KvCacheConfig.enable_block_reuse", "Gone", "QuantAlgo.GONE"),
        *("LLM.generate_async.gone", "LLM.gone", "RequestOutput.gone"),
    }


@pytest.mark.parametrize("version", record.RECORDED)
def test_every_entry_says_where_it_was_read(version: str) -> None:
    table = signatures(version)
    sections = ("functions", "attributes", "mappings", "classes")
    entries = [table["llm"], *(entry for section in sections for entry in table[section].values())]
    assert {entry["source"] for entry in entries} <= set(table["sources"])
    for source in table["sources"].values():
        assert source["repository"]
        assert re.match(
            r"(\d\.\d\.\d/_modules/)?tensorrt_llm/|docs/source/|tests/unittest/|(1\.4\.0rc1/)?llm-api/", source["path"]
        )
        # A copy without a commit is told by its length.
        assert source["commit"] or source["characters"]
    for model in OFFICIAL_MODELS if version in TABLES else ():
        assert official(model, version).source["commit"]


def _pairs(model: Model, config: Any) -> list[tuple[Tensor, OfficialTensor | None]]:
    by_name = [{tensor.name: tensor for tensor in side} for side in (config.inputs, config.outputs)]
    return [
        (tensor, found.get(tensor.name))
        for side, found in zip((model.inputs, model.outputs), by_name, strict=True)
        for tensor in side
    ]


@pytest.mark.parametrize("version", TABLES)
@pytest.mark.parametrize("name", OFFICIAL_MODELS)
def test_our_tensors_are_the_official_ones(name: OfficialModel, version: str) -> None:
    unknown: set[str] = set()
    relaxed: set[str] = set()
    for ours, theirs in _pairs(MODELS[name], official(name, version)):
        if theirs is None:
            unknown.add(ours.name)
            continue
        # The operator's to choose there.
        expected = "FP32" if theirs.data_type == "${logits_datatype}" else theirs.data_type
        dims = OLDER_DIMS.get((ours.name, version), ours.dims)
        assert (ours.data_type, dims) == (expected, theirs.dims), ours.name
        assert ours.scalar == (theirs.reshape == ()), ours.name
        if ours.optional != theirs.optional:
            assert ours.optional, f"{ours.name} is optional officially"
            relaxed.add(ours.name)
        # Ours, of the Python backend, takes requests one by one.
        assert not ours.ragged or theirs.allow_ragged_batch, ours.name
    assert unknown == set(NOT_OFFICIAL[name])
    assert relaxed - _not_optional_anywhere(name, version) == RELAXED[name]


def _not_optional_anywhere(name: OfficialModel, version: str) -> set[str]:
    """Outputs are never optional; a name that is both, like REQUEST_OUTPUT_LEN, is looked at as an input."""
    inputs = {tensor.name for tensor in official(name, version).inputs}
    return {tensor.name for tensor in official(name, version).outputs} - inputs


def test_the_bls_model_takes_what_the_ensemble_takes() -> None:
    """And has its outputs first."""
    bls = {tensor.name: tensor for tensor in models.TENSORRT_LLM_BLS.inputs}
    for theirs in models.ENSEMBLE.inputs:
        assert bls[theirs.name] == theirs
    outputs = {tensor.name: tensor for tensor in models.ENSEMBLE.outputs}
    assert all(outputs[tensor.name] == tensor for tensor in models.TENSORRT_LLM_BLS.outputs if tensor.name in outputs)
