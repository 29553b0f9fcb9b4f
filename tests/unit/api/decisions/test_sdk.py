"""Fields of the body and of the answer against the types of openai-python."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
import typing_extensions
from openai import types
from openai.types import decision, decision_create_params
from openai.types.shared_params.decision_input_json import DecisionInputJSON
from typing_extensions import Required

from openai_bls.api.decisions import schema
from tests.unit.api.decisions.support import Engine, choice, decided
from tests.unit.core_support import Bench

GIVEN: dict[Any, Any] = {
    decision_create_params.DecisionCreateParams: schema.DecisionsBody,
    decision_create_params.QuestionQuestionParamPredicate: schema.Predicate,
    decision_create_params.QuestionQuestionParamChoice: schema.Choice,
    decision_create_params.QuestionQuestionParamChoiceChoice: schema.Option,
    decision_create_params.QuestionQuestionParamScore: schema.Score,
    decision_create_params.QuestionQuestionParamScoreLevel: schema.Level,
    decision_create_params.InputUnionMember1DecisionInputUserMessage: schema.Message,
    decision_create_params.InputUnionMember1DecisionInputDeveloperMessage: schema.Message,
    decision_create_params.InputUnionMember1DecisionInputSystemMessage: schema.Message,
    decision_create_params.InputUnionMember1DecisionInputAssistantMessage: schema.Message,
    decision_create_params.InputUnionMember1DecisionInputFunctionCall: schema.FunctionCall,
    decision_create_params.InputUnionMember1DecisionInputFunctionCallOutput: schema.FunctionCallOutput,
    decision_create_params.InputUnionMember1DecisionInputCustomToolCall: schema.CustomToolCall,
    decision_create_params.InputUnionMember1DecisionInputCustomToolCallOutput: schema.CustomToolCallOutput,
    types.DecisionInputTextParam: schema.InputText,
    types.DecisionInputImageParam: schema.InputImage,
    DecisionInputJSON: schema.InputJson,
}
ANSWERED: dict[Any, Any] = {
    decision.Decision: schema.Decision,
    decision.AnswerAnswerResourcePredicate: schema.PredicateAnswer,
    decision.AnswerAnswerResourceChoice: schema.ChoiceAnswer,
    decision.AnswerAnswerResourceChoiceProbability: schema.OptionProbability,
    decision.AnswerAnswerResourceScore: schema.ScoreAnswer,
    decision.AnswerAnswerResourceScoreProbability: schema.LevelProbability,
    decision.Usage: schema.DecisionUsage,
    decision.UsageInputTokensDetails: schema.InputDetails,
    decision.UsageOutputTokensDetails: schema.OutputDetails,
}
WITHOUT_EFFECT = {"prompt_cache_breakpoint"}
"""Taken wherever it stands: `fields.NESTED`."""


def names(struct: Any) -> set[str]:
    tag = {struct.__struct_config__.tag_field} - {None}
    return {*struct.__struct_encode_fields__, *tag}


@pytest.mark.parametrize(("sdk", "own"), GIVEN.items())
def test_every_field_of_a_request_is_known(sdk: Any, own: Any) -> None:
    fields = typing.get_type_hints(sdk, include_extras=True)
    assert set(fields) - WITHOUT_EFFECT <= names(own)
    required = {one.encode_name for one in msgspec.structs.fields(own) if one.required}
    assert required <= {name for name, kind in fields.items() if typing_extensions.get_origin(kind) is Required}


@pytest.mark.parametrize(("sdk", "own"), ANSWERED.items())
def test_an_answer_has_the_fields_of_the_sdk(sdk: Any, own: Any) -> None:
    assert names(own) == set(sdk.model_fields)


def test_the_sdk_reads_an_answer() -> None:
    bench = Bench()
    Engine(bench)
    score = {"type": "score", "instructions": "How?", "levels": [{"label": "a"}, {"label": "b", "description": "c"}]}
    text = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    asked = (choice(True, "true"), score, {"type": "predicate", "instructions": [{"type": "input_text", "text": "x"}]})
    answer = decided(bench, *asked, input=[{"role": "user", "content": [text]}], prompt_cache_options={"ttl": "30m"})
    read = types.Decision.model_validate(answer)
    assert [one.type for one in read.answers] == ["choice", "score", "predicate"]
    assert read.to_dict() == answer
