from __future__ import annotations

import functools
from typing import Any

import pytest

from openai_bls.core.errors import InvalidRequestError, ModelNotFoundError, OverloadedError
from openai_bls.output.detect import UNKNOWN_CALLS, UNKNOWN_REASONING, ModelFormats, detect
from openai_bls.pipeline.models.registry import Models, ServedModel, Target
from tests.unit.core_support import FakeEngineClient, FakePrompts, engine_info, tiny_detokenizers
from tests.unit.pipeline.task_models.task_support import model as task_model


def served(*aliases: str, **info: Any) -> ServedModel:
    detokenizers = tiny_detokenizers()
    return ServedModel(engine_info(**info), FakeEngineClient(), FakePrompts(), detokenizers, ModelFormats(), aliases)


def find(models: Models, name: str | None) -> Target:
    return models.target(name, models.get(name))


def test_nobody_answers_for_a_default_engine_that_has_failed() -> None:
    small, big = served(model_name="small"), served("openai_bls", model_name="big")
    models = Models([small], {"tensorrt_llm": "cheese"}, has_default=False)
    assert (models.default, find(models, "small")) == (None, (small, None))
    with pytest.raises(OverloadedError) as info:
        find(models, None)
    assert (info.value.status, info.value.code) == (503, "model_unavailable")
    with pytest.raises(ModelNotFoundError):
        find(models, "openai_bls")
    models.add(big, as_default=True)
    assert (models.default, find(models, None), list(models)) == (big, (big, None), [big, small])


def test_names_aliases_and_adapters() -> None:
    big = served("openai_bls", "gpt-4", model_name="big", lora_names=("poet", "big"))
    small = served(model_name="small", lora_names=("poet", "clerk"))
    models = Models([big])
    assert models.names == ["big", "openai_bls", "gpt-4", "poet"]
    models.add(small)
    assert models.names == ["big", "openai_bls", "gpt-4", "small", "poet", "clerk"]
    assert list(models) == [big, small]
    assert models.default is big
    for name, expected in {
        None: (big, None),
        "big": (big, None),
        "gpt-4": (big, None),
        "small": (small, None),
        # The first that has it.
        "poet": (big, "poet"),
        "clerk": (small, "clerk"),
    }.items():
        assert find(models, name) == expected
    for unknown in ("", "Big", "tensorrt_llm"):
        with pytest.raises(ModelNotFoundError) as info:
            find(models, unknown)
        assert (info.value.status, info.value.code, info.value.param) == (404, "model_not_found", "model")


def test_cards() -> None:
    models = Models([served("alias", model_name="big", lora_names=("poet",))])
    assert (models.card("alias")["root"], models.card("poet")["parent"]) == ("big", "big")
    with pytest.raises(ModelNotFoundError):
        models.card("nope")


def test_another_engine_in_its_place() -> None:
    model = served("alias", model_name="old")
    before = model.fingerprint
    model.use_engine(engine_info(model_name="new"))
    assert model.names == ("new", "alias")
    assert model.fingerprint != before
    model.use_engine(engine_info(model_name="old"))
    assert model.fingerprint == before
    model.use_engine(engine_info(model_name="old", lora_names=("poet",)))
    assert model.fingerprint == before


def test_task_models_beside_the_engines() -> None:
    models = Models([served("alias", model_name="big", lora_names=("poet",))])
    models.tasks.replace(
        [task_model("rerank", "ranks"), task_model("chat", "poet"), task_model("chat", "x", output=[])]
    )
    assert models.names == ["big", "alias", "poet", "ranks"]
    assert models.card("ranks") == {
        "id": "ranks",
        "object": "model",
        "created": 7,
        "owned_by": "openai_bls",
        "root": "ranks",
        "parent": None,
        "max_model_len": None,
        "input_modalities": None,
        "task": "rerank",
    }
    # Engines and adapters keep their names.
    assert (models.task_model("poet"), find(models, "poet").lora_name) == (None, "poet")
    assert models.card("poet")["task"] == "generate"
    with pytest.raises(InvalidRequestError) as info:
        find(models, "ranks")
    assert (info.value.param, info.value.code) == ("model", "unsupported_endpoint")
    for ask in (functools.partial(find, models), models.card):
        with pytest.raises(OverloadedError) as failed:
            ask("x")
        assert failed.value.code == "model_unavailable"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ message.reasoning_content }}", [UNKNOWN_REASONING]),
        ("{{ tools }}", [UNKNOWN_CALLS]),
        ("{{ tools }}{{ message.reasoning_content }}", [UNKNOWN_REASONING, UNKNOWN_CALLS]),
    ],
)
def test_a_card_says_what_is_not_known(template: str, said: list[str]) -> None:
    formats = detect(template)
    unknown = ServedModel(engine_info(), FakeEngineClient(), FakePrompts(), tiny_detokenizers(), formats)
    assert Models([unknown]).card("tiny")["warnings"] == said
    assert "warnings" not in Models([served()]).card("tiny")
