from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openai_bls import word_lists
from openai_bls.errors import ApiError, EngineError, InvalidRequestError, OverloadedError
from openai_bls.messages import SamplingParams, TokenDelta
from openai_bls.official import Responder, Sequence, is_stop, parse
from openai_bls.tensors import DECODE_CONTEXT_LENGTH, TENSORRT_LLM
from tests.unit.core_support import EOS, engine_info

INFO = engine_info(eos_token_ids=(EOS, 2))
DTYPES = {tensor.name: np.dtype(tensor.numpy_dtype) for tensor in TENSORRT_LLM.inputs}


def arrays(**values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Input tensors as a batched model sees them: a row for each scalar's value."""
    given: dict[str, Any] = {"input_ids": [[1, 2, 3]], "request_output_len": 5, **values}
    result = {}
    for name, value in given.items():
        if value is not None:
            array = np.array(value, dtype=DTYPES[name])
            result[name] = array.reshape(1) if array.ndim == 0 else array
    return result


def refused(**values: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as info:
        parse(arrays(**values), INFO, True)
    return info.value


def test_defaults_are_greedy_and_end_at_the_models_own_tokens() -> None:
    request = parse(arrays(), INFO, True)
    assert request.prompts == [[1, 2, 3]]
    assert request.template.max_tokens == 5
    assert request.template.sampling == SamplingParams(temperature=0.0)
    assert request.template.stop_token_ids == (EOS, 2)
    assert (request.return_sequences, request.streaming, request.exclude_input, request.pad_id) == (1, False, True, -1)
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
    assert sampling(runtime_top_p=0.0, runtime_top_k=0) == SamplingParams()
    assert sampling(random_seed=2**64 - 1) == SamplingParams(temperature=0.0, seed=2**64 - 1)
    assert sampling(random_seed=4, seed=5).seed == 5


def test_lengths_cut_the_padding_of_rows() -> None:
    values = {"input_ids": [[1, 2, 9], [3, 4, 5]], "input_lengths": [2, 3], "request_output_len": [4, 4]}
    assert parse(arrays(**values), INFO, True).prompts == [[1, 2], [3, 4, 5]]


def test_words() -> None:
    words = word_lists.encode([(5, 6), (7,)])
    request = parse(arrays(stop_words_list=words[np.newaxis], bad_words_list=words), INFO, True)
    assert request.template.stop_words == ((5, 6), (7,))
    assert request.template.bad_words == ((5, 6), (7,))


NEUTRAL = {
    "beam_width": (1, 2),
    "repetition_penalty": (1.0, 1.1),
    "presence_penalty": (0.0, 0.5),
    "frequency_penalty": (0.0, 0.5),
    "min_tokens": (0, 1),
    "beam_search_diversity_rate": (0.0, 0.5),
    "runtime_top_p_min": (0.0, 0.5),
    "runtime_top_p_decay": (1.0, 0.5),
    "return_log_probs": (False, True),
    "return_context_logits": (False, True),
    "return_generation_logits": (False, True),
    "return_perf_metrics": (False, True),
}
NEVER = {"lora_task_id": 1, "guided_decoding_guide_type": [b"json"], "guided_decoding_guide": [b"{}"]}
FREE = {"len_penalty": 2.0, "early_stopping": True, "runtime_top_p_reset_ids": 5}
HONOURED = {
    "input_ids", "input_lengths", "request_output_len", "num_return_sequences", "end_id", "pad_id", "stop_words_list",
    "bad_words_list", "embedding_bias", "temperature", "runtime_top_k", "runtime_top_p", "seed", "random_seed",
    "exclude_input_in_output", "stop", "streaming",
}  # fmt: skip


def test_every_declared_input_is_in_one_table_of_this_test() -> None:
    names = [*NEUTRAL, *NEVER, *FREE, *HONOURED]
    assert sorted(names) == sorted(DTYPES)


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_this_engine_cannot_do_is_refused_by_name_unless_it_changes_nothing(name: str) -> None:
    neutral, other = NEUTRAL[name]
    assert parse(arrays(**{name: neutral}), INFO, True) == parse(arrays(), INFO, True)
    assert refused(**{name: other}).param == name


def test_never_and_always() -> None:
    for name, value in NEVER.items():
        assert refused(**{name: value}).param == name
    assert parse(arrays(**FREE), INFO, True) == parse(arrays(), INFO, True)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"request_output_len": None}, "request_output_len"),
        ({"request_output_len": []}, "request_output_len"),
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
        ({"embedding_bias": [[0.0, 0.5]]}, "embedding_bias"),
        ({"stop_words_list": [[1, 2]]}, "stop_words_list"),
        ({"bad_words_list": [[[1], [5]]]}, "bad_words_list"),
        ({"stop_words_list": [[[1], [1]], [[2], [1]]]}, "stop_words_list"),
    ],
)
def test_bad_tensors_are_refused_by_name(values: dict[str, Any], param: str) -> None:
    assert refused(**values).param == param


def test_stop_requests() -> None:
    assert is_stop(arrays(stop=True))
    assert is_stop({"stop": np.array([[True]])})
    assert not is_stop(arrays(stop=False))
    assert not is_stop(arrays())


class Recorder:
    def __init__(self, **values: Any) -> None:
        self.sent: list[tuple[dict[str, Any], bool]] = []
        self.errors: list[ApiError] = []
        request = parse(arrays(**values), INFO, True)
        self.responder = Responder(request, lambda outputs, last: self.sent.append((outputs, last)), self.errors.append)
        self.pairs = self.responder.sequences()

    def deliver(self, at: int, tokens: list[int], reason: Any = None, **fields: Any) -> None:
        sequence: Sequence = self.pairs[at][1]
        sequence(TokenDelta(at, tokens, reason, **fields))

    def tokens(self) -> list[Any]:
        return [outputs["output_ids"].tolist() for outputs, _ in self.sent]

    def lasts(self) -> list[bool]:
        return [last for _, last in self.sent]


def test_a_whole_answer_is_one_response() -> None:
    recorder = Recorder()
    recorder.deliver(0, [4, 5])
    recorder.deliver(0, [6], "stop")
    assert recorder.tokens() == [[[[4, 5, 6]]]]
    outputs, last = recorder.sent[0]
    assert last
    assert recorder.responder.ended
    declared = {t.name: t for t in TENSORRT_LLM.outputs}
    assert set(outputs) == set(declared)
    for name, array in outputs.items():
        assert array.dtype == np.dtype(declared[name].numpy_dtype)
        # With the batch dimension; -1 is any length.
        assert array.ndim == 1 + len(declared[name].dims)
    assert outputs["sequence_length"].tolist() == [[3]]


def test_the_prompt_comes_first_if_asked_for() -> None:
    recorder = Recorder(exclude_input_in_output=False)
    recorder.deliver(0, [4], "length")
    assert recorder.tokens() == [[[[1, 2, 3, 4]]]]


def test_a_stream_is_a_response_a_step_with_the_new_tokens_and_their_context() -> None:
    recorder = Recorder(streaming=True, exclude_input_in_output=False)
    steps = [list(range(10)), list(range(10, 20)), [20], []]
    for step in steps[:-1]:
        recorder.deliver(0, step)
    recorder.deliver(0, steps[-1], "length")
    assert recorder.tokens() == [[[step]] for step in steps]
    assert recorder.lasts() == [False, False, False, True]
    before: list[int] = []
    for (outputs, _), step in zip(recorder.sent, steps, strict=True):
        context = before[-DECODE_CONTEXT_LENGTH:]
        padded = [-1] * (DECODE_CONTEXT_LENGTH - len(context)) + context
        assert outputs["decode_context"].tolist() == [padded]
        before += step
    assert [o["decode_final"].tolist() for o, _ in recorder.sent] == [[[False]]] * 3 + [[[True]]]


def test_rows_and_sequences() -> None:
    recorder = Recorder(
        input_ids=[[1], [2]], request_output_len=[5, 5], num_return_sequences=[2, 2], seed=[2**64 - 1] * 2
    )
    made = [make(at) for at, (make, _) in enumerate(recorder.pairs)]
    assert [(r.request_id, r.prompt_token_ids, r.sampling.seed) for r in made] == [
        (0, [1], 2**64 - 1),
        (1, [1], 0),
        (2, [2], 2**64 - 1),
        (3, [2], 0),
    ]
    for at in (3, 0, 2, 1):
        recorder.deliver(at, [at], "length")
    where = [(int(o["batch_index"][0, 0]), int(o["sequence_index"][0, 0])) for o, _ in recorder.sent]
    assert where == [(1, 1), (0, 0), (1, 0), (0, 1)]
    assert recorder.lasts() == [False, False, False, True]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"reason": "error", "error": "x", "invalid": True}, InvalidRequestError),
        ({"reason": "error", "error": "x"}, EngineError),
        ({"reason": "cancelled"}, OverloadedError),
    ],
)
def test_one_failure_ends_the_request_once(fields: dict[str, Any], kind: type[ApiError]) -> None:
    recorder = Recorder(num_return_sequences=3, streaming=True)
    recorder.deliver(0, [1])
    recorder.deliver(1, [], **fields)
    recorder.deliver(0, [2], "length")
    recorder.deliver(2, [], **fields)
    assert [type(error) for error in recorder.errors] == [kind]
    assert len(recorder.sent) == 1
    assert recorder.responder.ended


def test_after_closing_nothing_is_sent() -> None:
    recorder = Recorder(streaming=True)
    recorder.responder.close()
    recorder.deliver(0, [1])
    recorder.deliver(0, [], "cancelled")
    assert (recorder.sent, recorder.errors) == ([], [])
