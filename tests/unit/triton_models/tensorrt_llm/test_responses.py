from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.engine_types import GenerationRequest, Logprobs, SamplingParams, TokenDelta
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError
from openai_bls.triton_models.tensorrt_llm.requests import OfficialRequest
from openai_bls.triton_models.tensorrt_llm.responses import Responder
from openai_bls.triton_models.tensors.models import DECODE_CONTEXT_LENGTH, TENSORRT_LLM
from tests.unit.triton_models.dtypes import numpy_dtype


def official_request(**changes: Any) -> OfficialRequest:
    template: dict[str, Any] = {"request_id": 0, "prompt_token_ids": [], "max_tokens": 5}
    template |= {name: changes.pop(name) for name in ("logprobs", "sampling") if name in changes}
    values: dict[str, Any] = {
        "prompts": [[1, 2, 3]],
        "template": GenerationRequest(**template),
        "return_sequences": 1,
        "streaming": False,
        "exclude_input": True,
        "max_model_len": 100,
    }
    return OfficialRequest(**(values | changes))


def log_probs(*values: float) -> Logprobs:
    return Logprobs(list(values), [[]] * len(values), [[]] * len(values))


class Recorder:
    def __init__(self, **values: Any) -> None:
        self.sent: list[tuple[dict[str, Any], bool]] = []
        self.errors: list[ApiError] = []
        request = official_request(**values)
        self.responder = Responder(request, lambda outputs, last: self.sent.append((outputs, last)), self.errors.append)
        self.sequences = self.responder.sequences()

    def deliver(self, at: int, tokens: list[int], reason: Any = None, **fields: Any) -> None:
        self.sequences[at](TokenDelta(at, tokens, reason, **fields))

    def tokens(self) -> list[Any]:
        return [outputs["output_ids"].tolist() for outputs, _ in self.sent]

    def lasts(self) -> list[bool]:
        return [last for _, last in self.sent]


def test_a_whole_answer_is_one_response() -> None:
    recorder = Recorder(logprobs=0, dummies=frozenset({"context_logits", "generation_logits"}))
    recorder.deliver(0, [4, 5], logprobs=log_probs(-0.5, -1.0))
    recorder.deliver(0, [6], "stop", logprobs=log_probs(-2.0))
    assert recorder.tokens() == [[[[4, 5, 6]]]]
    outputs, last = recorder.sent[0]
    assert last
    assert recorder.responder.ended
    declared = {t.name: t for t in TENSORRT_LLM.outputs}
    assert set(outputs) == set(declared)
    for name, array in outputs.items():
        assert array.dtype == numpy_dtype(declared[name])
        # With the batch dimension; -1 is any length.
        assert array.ndim == 1 + len(declared[name].dims)
    assert outputs["sequence_length"].tolist() == [[3]]
    assert outputs["output_log_probs"].tolist() == [[[-0.5, -1.0, -2.0]]]
    assert outputs["cum_log_probs"].tolist() == [[-3.5]]
    assert outputs["context_logits"].tolist() == [[[0.0]]]
    assert outputs["generation_logits"].tolist() == [[[[0.0]]]]


def test_a_stream_is_a_response_a_step_with_the_new_tokens_and_their_context() -> None:
    recorder = Recorder(streaming=True, exclude_input=False)
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
    recorder = Recorder(prompts=[[1], [2]], return_sequences=2, sampling=SamplingParams(seed=2**64 - 1))
    made = [sequence.request(at) for at, sequence in enumerate(recorder.sequences)]
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
    recorder = Recorder(return_sequences=3, streaming=True)
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
