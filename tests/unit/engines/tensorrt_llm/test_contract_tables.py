"""The recorded tables: the fake and the recorder agree with them, and our tensors with the official ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.triton_models.tensors import models
from openai_bls.triton_models.tensors.declaration import Model, Tensor
from openai_bls.triton_models.tensors.models import MODELS
from tests.contracts import record
from tests.contracts.tables import VERSIONS as TABLES
from tests.contracts.tables import OfficialModel, OfficialTensor, official, signatures
from tests.unit.engines.tensorrt_llm.fake_support import VERSIONS, environment, patched

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
    },
    "ensemble": {
        "min_length": "min_tokens's name up to 0.19",
        "random_seed": "seed's name up to 0.19",
    },
}
# Required in the official configs, optional in ours: what is left out is told by other inputs, or refused by name.
RELAXED: dict[str, set[str]] = {
    "tensorrt_llm": {"input_lengths", "request_output_len"},
    "preprocessing": {"REQUEST_OUTPUT_LEN"},
    "postprocessing": {"SEQUENCE_LENGTH"},
    "ensemble": set(),
}
OFFICIAL_MODELS: tuple[OfficialModel, ...] = ("tensorrt_llm", "preprocessing", "postprocessing", "ensemble")


@pytest.mark.parametrize("version", [*VERSIONS, "1.3.0rc20", "1.3.0rc21"])
def test_the_fake_is_as_recorded(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patched(environment(version)):
        assert record.main(["--check", "--no-run"]) == 0
    assert "pass: nothing differs that is recorded; not looked at: config.pbtxt" in capsys.readouterr().out


@pytest.mark.parametrize("version", VERSIONS)
def test_recording_gives_what_is_compared(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patched(environment(version)):
        assert record.main([]) == 0
        text = capsys.readouterr().out
    found = json.loads(text[text.index("{") :])
    base = signatures(".".join(version.split(".")[:2]))
    assert found["releases"] == [version]
    assert {name: entry["fields"].keys() for name, entry in found["classes"].items() if "fields" in entry} == {
        name: entry["fields"].keys() for name, entry in base["classes"].items() if "fields" in entry
    }
    assert [serious for serious, _ in record.compare(base, found) if serious] == []


def _changed(table: dict[str, Any], change: str) -> dict[str, Any]:
    classes = table["classes"]
    match change:
        case "a field more":
            classes["SamplingParams"]["fields"]["gone"] = {"default": None}
        case "a default":
            classes["KvCacheConfig"]["fields"]["enable_block_reuse"]["default"] = False
        case "a class":
            classes["Gone"] = {"module": "tensorrt_llm.llmapi", "kind": "dataclass", "fields": {}}
        case "a member":
            classes["QuantAlgo"]["members"].append("GONE")
        case "a parameter":
            table["functions"]["LLM.generate_async"]["parameters"]["gone"] = {"default": None}
        case "a method":
            table["functions"]["LLM.gone"] = {"parameters": {}}
        case "a private name":
            classes["SamplingParams"]["private"].append("_gone")
        case "an attribute":
            table["attributes"]["RequestOutput"]["names"].append("gone")
    return table


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("a field more", r"SamplingParams\.gone is missing"),
        ("a default", r'KvCacheConfig\.enable_block_reuse is {"default": true}, recorded {"default": false}'),
        ("a class", r"Gone is missing"),
        ("a member", r"QuantAlgo\.GONE is missing"),
        ("a parameter", r"LLM\.generate_async\.gone is missing"),
        ("a method", r"LLM\.gone is missing"),
        ("a private name", r"SamplingParams\._gone \(private\) is missing"),
        ("an attribute", r"RequestOutput\.gone is missing"),
    ],
)
def test_a_difference_is_listed(change: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    path.write_text(record.to_json(_changed(signatures("1.2"), change)))
    with patched(environment("1.2.1")):
        assert record.main(["--check", str(path), "--no-run"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("differs")]
    assert len(lines) == 1
    assert re.search(told, lines[0])


def test_a_version_is_held_against_the_table_before_it() -> None:
    expected = {
        "0.21.0": "tensorrt_llm-0.20",
        "1.0.0rc3": "tensorrt_llm-1.0",
        "1.2.1": "tensorrt_llm-1.2",
        "1.3.0rc20": "tensorrt_llm-1.2",
        "1.3.0rc21": "tensorrt_llm-1.3",
        "1.3.0": "tensorrt_llm-1.3",
        "1.4.0rc1": "tensorrt_llm-1.3",
    }
    assert {version: record.nearest(version).stem for version in expected} == expected


@pytest.mark.parametrize("version", record.RECORDED)
def test_every_entry_says_where_it_was_read(version: str) -> None:
    table = signatures(version)
    sections = ("functions", "attributes", "mappings", "classes")
    entries = [table["llm"], *(entry for section in sections for entry in table[section].values())]
    assert {entry["source"] for entry in entries} <= set(table["sources"])
    for source in table["sources"].values():
        assert source["repository"]
        assert re.match(r"(\d\.\d\.\d/_modules/)?tensorrt_llm/|docs/source/|tests/unittest/", source["path"])
        # A copy without a commit is told by its length.
        assert source["commit"] or source["characters"]
    for model in OFFICIAL_MODELS if version in TABLES else ():
        assert official(model, version).source["commit"]


def test_tables_are_written_as_the_recorder_writes_them() -> None:
    for path in sorted(Path(record.HERE).glob("*.json")):
        assert path.read_text() == record.to_json(json.loads(path.read_text())), path.name


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
        assert (ours.data_type, ours.dims) == (theirs.data_type, theirs.dims), ours.name
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
    """And has its outputs first; only the prompt is required."""
    bls = {tensor.name: tensor for tensor in models.TENSORRT_LLM_BLS.inputs}
    for theirs in models.ENSEMBLE.inputs:
        assert bls[theirs.name] == msgspec.structs.replace(theirs, optional=theirs.name != "text_input")
    outputs = {tensor.name: tensor for tensor in models.ENSEMBLE.outputs}
    assert all(outputs[tensor.name] == tensor for tensor in models.TENSORRT_LLM_BLS.outputs if tensor.name in outputs)


def _template(entry: dict[str, Any]) -> str:
    """A config.pbtxt as the official ones are written, of what a table has."""
    text = "# input [ of nothing ]\nmax_batch_size: ${triton_max_batch_size}\n"
    for section in ("input", "output"):
        blocks = []
        for tensor in entry[f"{section}s"]:
            kind = tensor["data_type"] if "$" in tensor["data_type"] else f"TYPE_{tensor['data_type']}"
            lines = [f'name: "{tensor["name"]}"', f"data_type: {kind}", f"dims: {tensor['dims']}"]
            if "reshape" in tensor:
                lines.append(f"reshape: {{ shape: {tensor['reshape']} }}")
            lines += [f"{key}: true" for key in ("optional", "allow_ragged_batch") if tensor.get(key)]
            blocks.append("  {\n    " + "\n    ".join(lines) + "\n  }")
        text += f"{section} [\n" + ",\n".join(blocks) + "\n]\n"
    return text + "".join(
        f'parameters: {{\n  key: "{key}"\n  value: {{ string_value: "${{{key}}}" }}\n}}\n'
        for key in entry["parameters"]
    )


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    for model, entry in json.loads((record.HERE / "tensors-1.2.json").read_text())["models"].items():
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.pbtxt").write_text(_template(entry))
    return tmp_path


@pytest.mark.parametrize(
    ("model", "before", "after", "told"),
    [
        ("tensorrt_llm", "", "", None),
        ("tensorrt_llm", 'name: "seed"', 'name: "seeds"', "tensorrt_llm: input seed is missing"),
        ("postprocessing", "dims: [-1, -1]", "dims: [ -1 ]", "TOKENS_BATCH: dims is [-1], recorded [-1, -1]"),
        ("ensemble", "TYPE_STRING", "TYPE_INT32", "data_type is INT32, recorded STRING"),
        ("preprocessing", 'key: "tokenizer_dir"', 'key: "other"', "preprocessing: parameter tokenizer_dir is missing"),
    ],
)
def test_the_official_configs_are_compared(
    templates: Path, capsys: pytest.CaptureFixture[str], model: str, before: str, after: str, told: str | None
) -> None:
    path = templates / model / "config.pbtxt"
    path.write_text(path.read_text().replace(before, after, 1))
    with patched(environment("1.2.1")):
        code = record.main(["--check", "--no-run", "--models", str(templates)])
    page = capsys.readouterr().out
    assert code == (0 if told is None else 1)
    assert (told or "\npass: nothing differs that is recorded\n") in page


def test_options_and_two_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with patched(environment("1.2.1")):
        assert record.main(["--check"]) == 0
    assert "\ntwo tokens     pass (demo/checkpoint, as transformers has them)\n" in capsys.readouterr().out
    table = json.loads(record.OPTIONS.read_text())
    table["1.2"]["classes"] |= {"GoneConfig": {}, "CudaGraphConfig": {"gone": "bool"}, "MoeConfig": {"backend": "A|B"}}
    monkeypatch.setattr(record, "OPTIONS", tmp_path / "llm_args.json")
    record.OPTIONS.write_text(json.dumps(table))
    with patched(environment("1.2.1", tokens="1,2")):
        assert record.main(["--check"]) == 1
    page = capsys.readouterr().out
    for told in (
        "GoneConfig is missing in tensorrt_llm.llmapi.llm_args",
        "CudaGraphConfig.gone is missing",
        "MoeConfig.backend does not take A, B",
        "two tokens: [1, 2] came, transformers gives [",
    ):
        assert f"differs  {told}" in page


def test_without_a_gpu_there_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with patched(environment("1.2.1", FAKE_GPUS="none")):
        assert record.main(["--check"]) == 0
    assert "\ntwo tokens     not looked at: there is no GPU\n" in capsys.readouterr().out
