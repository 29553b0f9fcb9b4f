from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from openai_bls.core import word_lists
from openai_bls.core.engine_types import EngineInfo, Grammar, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.engines.capabilities import refusal
from openai_bls.output import structured
from openai_bls.triton_models.tensorrt_llm.requests import is_stop, parse
from openai_bls.triton_models.tensors.models import TENSORRT_LLM
from tests.unit.core_support import EOS, VOCAB_SIZE, engine_info
from tests.unit.triton_models.dtypes import numpy_dtype

INFO = engine_info(eos_token_ids=(EOS, 2), supported=("temperature", "top_p", "top_k", "seed"), grammar_backend="")
ABLE = engine_info(
    eos_token_ids=(EOS, 2),
    supported=(
        *INFO.supported, "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens",
        "logprobs", "grammar",
    ),
    grammar_backend="llguidance",
)  # fmt: skip
DTYPES = {tensor.name: numpy_dtype(tensor) for tensor in TENSORRT_LLM.inputs}


def arrays(**values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Input tensors as a batched model sees them: a row for each scalar's value."""
    given: dict[str, Any] = {"input_ids": [[1, 2, 3]], "request_output_len": 5, **values}
    result = {}
    for name, value in given.items():
        if value is not None:
            array = np.array(value, dtype=DTYPES[name])
            result[name] = array.reshape(1) if array.ndim == 0 else array
    return result


def refused(info: EngineInfo, **values: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse(arrays(**values), info, True)
    return caught.value


def test_defaults_are_greedy_and_end_at_the_models_own_tokens() -> None:
    request = parse(arrays(), INFO, True)
    assert request.prompts == [[1, 2, 3]]
    assert request.template.max_tokens == 5
    assert request.template.sampling == SamplingParams(temperature=0.0)
    assert request.template.stop_token_ids == (EOS, 2)
    assert (request.return_sequences, request.streaming, request.exclude_input) == (1, False, True)
    # What has no effect without beams or a decay is taken.
    assert parse(arrays(**FREE), INFO, True) == request
    assert parse(arrays(), INFO, False).exclude_input is False
    assert parse(arrays(exclude_input_in_output=True), INFO, False).exclude_input is True


@pytest.mark.parametrize(("end_id", "expected"), [(EOS, (EOS, 2)), (2, (EOS, 2)), (7, (7,)), (-1, ())])
def test_end_id(end_id: int, expected: tuple[int, ...]) -> None:
    assert parse(arrays(end_id=end_id), INFO, True).template.stop_token_ids == expected


def test_sampling() -> None:
    def sampling(**values: Any) -> SamplingParams:
        return parse(arrays(**values), INFO, True).template.sampling

    assert sampling(temperature=0.5) == SamplingParams(temperature=0.5)
    assert sampling(runtime_top_k=7) == SamplingParams(top_k=7)
    assert sampling(runtime_top_p=0.5, seed=3) == SamplingParams(top_p=0.5, seed=3)
    assert sampling(runtime_top_p=0.0, runtime_top_k=4, temperature=0.5) == SamplingParams(top_k=4, temperature=0.5)
    for unlimited in ({"runtime_top_k": 0}, {"runtime_top_p": 0.0}, {"runtime_top_k": 0, "runtime_top_p": 0.0}):
        assert sampling(**unlimited) == SamplingParams(temperature=0.0)
        assert sampling(**unlimited, temperature=0.75) == SamplingParams(temperature=0.0)
    assert sampling(random_seed=2**64 - 1) == SamplingParams(temperature=0.0, seed=2**64 - 1)
    assert sampling(random_seed=4, seed=5).seed == 5


def test_lengths_cut_the_padding_of_rows() -> None:
    values = {"input_ids": [[1, 2, 9], [3, 4, 5]], "input_lengths": [2, 3], "request_output_len": [4, 4]}
    assert parse(arrays(**values), INFO, True).prompts == [[1, 2], [3, 4, 5]]


def test_words_lengths_and_log_probs() -> None:
    words = word_lists.encode([(5, 6), (7,)])
    found = parse(arrays(stop_words_list=words[np.newaxis], bad_words_list=words), ABLE, True).template
    assert found.stop_words == found.bad_words == ((5, 6), (7,))
    assert (found.min_tokens, found.logprobs) == (0, None)
    for values, least in (({"min_tokens": 5}, 5), ({"min_length": 2}, 2), ({"min_length": 2, "min_tokens": 3}, 3)):
        assert parse(arrays(**values), ABLE, True).template.min_tokens == least
    # Of the sampled tokens alone.
    assert parse(arrays(return_log_probs=True), ABLE, True).template.logprobs == 0


ALL_OUTPUTS = frozenset(tensor.name for tensor in TENSORRT_LLM.outputs)
NAMED = frozenset({"output_ids", "output_log_probs"})


def test_outputs_that_a_client_names_are_asked_for() -> None:
    """Triton lists all outputs for a client that names none."""

    def asked(info: EngineInfo, outputs: frozenset[str], **values: Any) -> bool:
        return parse(arrays(**values), info, True, outputs=outputs).template.logprobs is not None

    assert asked(ABLE, NAMED)
    assert asked(ABLE, NAMED, streaming=True)
    assert not asked(ABLE, NAMED, return_log_probs=False)
    assert not asked(ABLE, NAMED - {"output_log_probs"})
    # Not named: with whole answers, where the engine has them.
    assert asked(ABLE, ALL_OUTPUTS)
    assert not asked(ABLE, ALL_OUTPUTS, streaming=True)
    assert not asked(INFO, ALL_OUTPUTS)
    for info, outputs in ((INFO, NAMED), (ABLE, frozenset({"output_ids", "context_logits"}))):
        with pytest.raises(InvalidRequestError) as refused:
            asked(info, outputs)
        assert refused.value.param in outputs - {"output_ids"}


def test_a_decoders_prompt_is_refused() -> None:
    assert "encoder-decoder" in refused(INFO, decoder_input_ids=[[4, 5]]).message


# Inputs at a value that changes nothing, and at another.
NEUTRAL = {
    "beam_width": (1, 2),
    "beam_search_diversity_rate": (0.0, 0.5),
    "runtime_top_p_min": (0.0, 0.5),
    "runtime_top_p_decay": (1.0, 0.5),
    "return_context_logits": (False, True),
    "return_generation_logits": (False, True),
    "return_perf_metrics": (False, True),
}
# The same, and the field of the engine that honours them.
SUPPORTED = {
    "repetition_penalty": (1.0, 1.5, "repetition_penalty"),
    "presence_penalty": (0.0, 0.5, "presence_penalty"),
    "frequency_penalty": (0.0, -0.5, "frequency_penalty"),
    "min_tokens": (0, 1, "min_tokens"),
    "min_length": (0, 1, "min_tokens"),
    "return_log_probs": (False, True, "logprobs"),
    "embedding_bias": ([[0.0, 0.0]], [[0.0, 0.5]], "logit_bias"),
    "guided_decoding_guide_type": ([b""], [b"json"], "grammar"),
}
FREE = {
    "len_penalty": 2.0,
    "early_stopping": True,
    "runtime_top_p_reset_ids": 5,
    "decoder_input_ids": [[0]],
    "decoder_input_lengths": 1,
}
HONOURED = {
    "input_ids", "input_lengths", "request_output_len", "num_return_sequences", "end_id", "pad_id", "stop_words_list",
    "bad_words_list", "temperature", "runtime_top_k", "runtime_top_p", "seed", "random_seed",
    "exclude_input_in_output", "stop", "streaming", "guided_decoding_guide",
}  # fmt: skip


def test_every_declared_input_is_in_one_table_of_this_test() -> None:
    names = [*NEUTRAL, *SUPPORTED, *FREE, *HONOURED, "lora_task_id"]
    assert sorted(names) == sorted(DTYPES)


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_no_engine_does_is_refused_by_name_unless_it_changes_nothing(name: str) -> None:
    neutral, other = NEUTRAL[name]
    for info in (INFO, ABLE):
        assert parse(arrays(**{name: neutral}), info, True) == parse(arrays(), INFO, True)
        assert refused(info, **{name: other}).param == name


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_this_engine_does_not_do_is_refused_by_name_unless_it_changes_nothing(name: str) -> None:
    neutral, other, field = SUPPORTED[name]
    assert parse(arrays(**{name: neutral}), INFO, True) == parse(arrays(), INFO, True)
    assert refused(INFO, **{name: other}).param == name
    but_one = engine_info(supported=tuple(f for f in ABLE.supported if f != field))
    assert refused(but_one, **{name: other}).param == name


def test_rows_that_differ_are_refused() -> None:
    """Also where the first alone would change nothing."""
    values: dict[str, Any] = {"input_ids": [[1], [2]], "request_output_len": [5, 5]}
    assert refused(ABLE, **values, beam_width=[1, 2]).param == "beam_width"
    assert refused(ABLE, **values, presence_penalty=[0, 1]).param == "presence_penalty"
    assert refused(ABLE, **values, embedding_bias=[[1.0], [2.0]]).param == "embedding_bias"
    assert refused(ABLE, **values, guided_decoding_guide_type=[b"json", b""]).param == "guided_decoding_guide_type"


def test_an_adapter_is_refused_with_advice() -> None:
    error = refused(engine_info(lora_names=("pirate", "poet")), lora_task_id=0)
    assert error.param == "lora_task_id"
    assert error.message.endswith("models of their own name by openai_bls: pirate, poet.")


def test_penalties_keep_the_greedy_default() -> None:
    def sampling(**values: Any) -> SamplingParams:
        return parse(arrays(**values), ABLE, True).template.sampling

    given: dict[str, Any] = {"repetition_penalty": 1.5, "presence_penalty": -2.0, "frequency_penalty": 0.25}
    assert sampling(**given) == SamplingParams(temperature=0.0, **given)
    assert sampling(**given, runtime_top_k=3, seed=1) == SamplingParams(top_k=3, seed=1, **given)
    assert sampling(embedding_bias=[[0.0, -1.5]]) == SamplingParams(temperature=0.0, logit_bias={1: -1.5})


def test_bias_of_the_tokens_that_have_one() -> None:
    def bias(*values: float) -> dict[int, float]:
        return parse(arrays(embedding_bias=[values]), ABLE, True).template.sampling.logit_bias

    assert bias(0.0, 2.5, 0.0, -0.5, 0.0) == {1: 2.5, 3: -0.5}
    # Longer than the vocabulary is harmless where it holds nothing.
    assert bias(1.0, *[0.0] * VOCAB_SIZE) == {0: 1.0}
    assert bias() == {}
    # Never, in a number that engines can add up.
    assert bias(-np.inf, -1e30) == {0: -100.0, 1: -100.0}
    # Whatever is taken here is taken by the engines, too.
    extremes = parse(arrays(embedding_bias=[[-np.inf, 100.0]]), ABLE, True).template
    assert refusal(msgspec.structs.replace(extremes, prompt_token_ids=[1]), engine_info()) is None
    shared = arrays(input_ids=[[1], [2]], request_output_len=[5, 5], embedding_bias=[[0.5], [0.5]])
    assert parse(shared, ABLE, True).template.sampling.logit_bias == {0: 0.5}


def guided(kind: str, guide: str | None, info: EngineInfo = ABLE) -> Grammar | None:
    given: dict[str, Any] = {"guided_decoding_guide_type": [[kind.encode()]]}
    if guide is not None:
        given["guided_decoding_guide"] = [[guide.encode()]]
    return parse(arrays(**given), info, True).template.grammar


TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "<b>"},
}


@pytest.mark.parametrize(
    ("kind", "guide", "expected"),
    [
        ("regex", "a+b", {"type": "regex", "pattern": "a+b"}),
        ("json_schema", '{"type": "integer"}', {"type": "json_schema", "json_schema": {"type": "integer"}}),
        ("json", None, {"type": "json_schema", "json_schema": True}),
        ("json", "", {"type": "json_schema", "json_schema": True}),
        ("ebnf_grammar", 'root ::= "a" | "b"', {"type": "grammar", "grammar": 'root ::= "a" | "b"'}),
        ("structural_tag", json.dumps(TAG), TAG),
    ],
)
def test_guides(kind: str, guide: str | None, expected: dict[str, Any]) -> None:
    assert guided(kind, guide) == structured.grammar(expected, ABLE, param="x")


def test_guides_that_the_engines_libraries_cannot_enforce() -> None:
    lark = 'start: "a" | "b"'
    kinds = ("json_schema", "regex", "ebnf")
    one = engine_info(
        engine="tensorrt_llm",
        grammar_dialect="guided_decoding",
        supported=ABLE.supported,
        grammar_backend="xgrammar",
        grammar_kinds=kinds,
    )
    assert guided("ebnf_grammar", lark) == Grammar("lark", lark)
    with pytest.raises(InvalidRequestError) as info:
        guided("ebnf_grammar", lark, one)
    assert info.value.param == "guided_decoding_guide"


@pytest.mark.parametrize(
    ("kind", "guide", "param"),
    [
        ("", "a+", "guided_decoding_guide_type"),
        ("Regex", "a+", "guided_decoding_guide_type"),
        ("regex", None, "guided_decoding_guide"),
        ("regex", "", "guided_decoding_guide"),
        ("json", "{}", "guided_decoding_guide"),
        ("json_schema", "{", "guided_decoding_guide"),
        ("json_schema", "[" * 100_000, "guided_decoding_guide"),
        ("structural_tag", "[]", "guided_decoding_guide"),
        ("structural_tag", "{}", "guided_decoding_guide"),
        ("regex", "(a", "guided_decoding_guide"),
        ("json_schema", '{"type": "obj"}', "guided_decoding_guide"),
        ("ebnf_grammar", 'root ::= "a', "guided_decoding_guide"),
    ],
)
def test_bad_guides_are_refused_by_name(kind: str, guide: str | None, param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        guided(kind, guide)
    assert info.value.param == param


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"request_output_len": None}, "request_output_len"),
        ({"request_output_len": []}, "request_output_len"),
        ({"request_output_len": 0}, "request_output_len"),
        ({"input_ids": [[1], [2]], "request_output_len": [1, 2]}, "request_output_len"),
        ({"input_lengths": 4}, "input_lengths"),
        ({"input_lengths": 0}, "input_lengths"),
        ({"input_lengths": -1}, "input_lengths"),
        ({"input_lengths": [1, 1]}, "input_lengths"),
        ({"num_return_sequences": 0}, "num_return_sequences"),
        ({"num_return_sequences": 129}, "num_return_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"runtime_top_p": 1.5}, "runtime_top_p"),
        ({"runtime_top_p": -0.5}, "runtime_top_p"),
        ({"runtime_top_k": -1}, "runtime_top_k"),
        ({"temperature": float("nan")}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"min_tokens": 6}, "min_tokens"),
        ({"min_length": -1}, "min_length"),
        ({"embedding_bias": [[*[0.0] * VOCAB_SIZE, 0.5]]}, "embedding_bias"),
        ({"embedding_bias": [[float("nan")]]}, "embedding_bias"),
        ({"embedding_bias": [[float("inf")]]}, "embedding_bias"),
        ({"embedding_bias": [[100.5]]}, "embedding_bias"),
        ({"guided_decoding_guide_type": [b"\xff"]}, "guided_decoding_guide_type"),
        ({"stop_words_list": [[1, 2]]}, "stop_words_list"),
        ({"bad_words_list": [[[1], [5]]]}, "bad_words_list"),
        ({"stop_words_list": [[[1], [1]], [[2], [1]]]}, "stop_words_list"),
    ],
)
def test_bad_tensors_are_refused_by_name(values: dict[str, Any], param: str) -> None:
    assert refused(ABLE, **values).param == param


def test_stop_requests() -> None:
    assert is_stop(arrays(stop=True))
    assert is_stop({"stop": np.array([[True]])})
    assert not is_stop(arrays(stop=False))
    assert not is_stop(arrays())


def test_an_output_that_the_context_has_no_room_for_is_shortened() -> None:
    """As officially; of a prompt that leaves no room one token is asked for, which the engine refuses."""
    info = engine_info(max_model_len=8)
    request = parse(arrays(request_output_len=[100], min_tokens=[90]), info, True)
    asked = request.engine_request(1, 0, 0)
    assert (asked.max_tokens, asked.min_tokens) == (5, 5)
    full = msgspec.structs.replace(request, prompts=[[1] * 8]).engine_request(1, 0, 0)
    assert (len(full.prompt_token_ids), full.max_tokens) == (8, 1)
