from __future__ import annotations

import pytest

from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.core.settings import EngineSettings, OpenAiBlsSettings
from openai_bls.triton_models.tensors.declaration import Model
from openai_bls.triton_models.tensors.models import JSON_INPUTS, MODELS


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_names_are_unique_and_dims_are_valid(model: Model) -> None:
    for tensors in (model.inputs, model.outputs):
        names = [tensor.name for tensor in tensors]
        assert len(names) == len(set(names))
        for tensor in tensors:
            assert tensor.dims
            assert all(dim == -1 or dim > 0 for dim in tensor.dims)
            assert not tensor.scalar or tensor.dims == (1,)


@pytest.mark.parametrize("model", [m for m in MODELS.values() if m.steps], ids=lambda model: model.name)
def test_ensembles_have_the_official_inputs_and_outputs(model: Model) -> None:
    """Those that the engine honours, under the names of 0.20 and the older ones."""
    assert {
        "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "min_length", "return_log_probs",
        "guided_decoding_guide_type", "guided_decoding_guide", "embedding_bias_words", "embedding_bias_weights",
    } <= {tensor.name for tensor in model.inputs if tensor.optional}  # fmt: skip
    assert {"cum_log_probs", "output_log_probs"} <= {tensor.name for tensor in model.outputs}


@pytest.mark.parametrize("model", [m for m in MODELS.values() if m.steps], ids=lambda model: model.name)
def test_no_input_of_an_ensemble_can_keep_it_waiting(model: Model) -> None:
    """Triton counts the required inputs that a request has, and an ensemble waits for one that is missing."""
    assert all(tensor.optional for tensor in model.inputs)
    inner = {step.model: {tensor.name: tensor for tensor in MODELS[step.model].inputs} for step in model.steps}
    given = {tensor.name for tensor in model.inputs}
    fed = [inner[step.model][name] for step in model.steps for name, outer in step.inputs.items() if outer in given]
    assert [tensor.name for tensor in fed if not tensor.optional] == []


def test_every_parameter_is_a_setting() -> None:
    assert set(MODELS["openai_bls"].parameters) <= set(OpenAiBlsSettings.__struct_fields__)
    assert set(MODELS["tensorrt_llm"].parameters) <= set(EngineSettings.__struct_fields__)


def test_every_input_of_openai_bls_is_optional_text() -> None:
    inputs = MODELS["openai_bls"].inputs
    assert all(tensor.optional and tensor.data_type == "STRING" for tensor in inputs)
    assert {tensor.name for tensor in inputs} == {
        "request", "endpoint", "prompt", "stop", "bad_words", *JSON_INPUTS,
    }  # fmt: skip
    assert {"chat.completions", "completions"} <= set(TRITON_ENTRIES)
