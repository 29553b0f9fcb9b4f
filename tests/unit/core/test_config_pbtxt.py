from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from openai_bls.core import config_pbtxt
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import MODELS, OPENAI_BLS, TENSORRT_LLM

TRICKY = """
# backend: "python"
name: "x" # backend: 'no'
backend: "tensorrt" "llm"; max_batch_size: 8
input [ { name: "a # b" data_type: TYPE_INT32 dims: [ -1, 2 ] }, { name: 'c' dims: 3 dims: [4] } ]
input: { name: "d\\n\\"e\\"" reshape: { shape: [ ] } }
parameters: {
  key: "k"
  value: {
    string_value: "${v}"
  }
}
parameters < key: "empty" value < string_value: "" > >
"""


def test_what_operators_write() -> None:
    config = config_pbtxt.parse(TRICKY)
    assert config_pbtxt.text(config, "backend") == "tensorrtllm"
    assert config_pbtxt.text(config, "max_batch_size") == "8"
    assert config_pbtxt.text(config, "platform", "none") == "none"
    assert config_pbtxt.names(config, "input") == {"a # b", "c", 'd\n"e"'}
    assert config_pbtxt.names(config, "output") == frozenset()
    assert config_pbtxt.parameters(config) == {"k": "${v}", "empty": ""}
    assert config["input"][1]["dims"] == ["3", "4"]


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_what_we_render_is_read_as_protobuf_reads_it(model: object) -> None:
    source = render(model)  # type: ignore[arg-type]
    mine = config_pbtxt.parse(source)
    theirs = text_format.Parse(source, model_config_pb2.ModelConfig())
    for section in ("input", "output"):
        assert config_pbtxt.names(mine, section) == {tensor.name for tensor in getattr(theirs, section)}
    assert config_pbtxt.text(mine, "backend") == theirs.backend
    assert config_pbtxt.parameters(mine) == {key: value.string_value for key, value in theirs.parameters.items()}


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_any_parameter_survives(parameters: dict[str, str]) -> None:
    """As protobuf itself writes them, with its own escapes."""
    config = json_format.ParseDict(
        {"parameters": {key: {"stringValue": value} for key, value in parameters.items()}},
        model_config_pb2.ModelConfig(),
    )
    written = text_format.MessageToString(config, as_utf8=True)
    assert config_pbtxt.parameters(config_pbtxt.parse(written)) == parameters


@pytest.mark.parametrize("source", ["a {", "a: ", "}", "a: }", '"a": 1', 'a: "b', "a: [1", "a: 'b\n'", "a: ? 1"])
def test_what_is_no_configuration(source: str) -> None:
    with pytest.raises(config_pbtxt.ConfigTextError):
        config_pbtxt.parse(source)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(render(OPENAI_BLS), encoding="utf-8")
    assert config_pbtxt.text(config_pbtxt.read(path), "name") == "openai_bls"
    assert "input_ids" in config_pbtxt.names(config_pbtxt.parse(render(TENSORRT_LLM)), "input")
    with pytest.raises(FileNotFoundError):
        config_pbtxt.read(tmp_path / "other")
