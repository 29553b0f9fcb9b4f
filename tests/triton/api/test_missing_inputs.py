"""Models without some of their inputs, at each of Triton's doors: every request is answered, by what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from openai_bls.launcher.testing import RunningServer
from openai_bls.triton_models.tensors.declaration import Tensor
from openai_bls.triton_models.tensors.models import MODELS
from tests.triton.conftest import ROOT
from tests.triton.triton_client import GrpcStream, TritonError, generate_stream, infer_input

pytestmark = pytest.mark.triton

# Every answer takes milliseconds; a request that is not answered at all takes this.
PATIENCE_S = 30.0
VALUES: dict[str, Any] = {"STRING": "a", "INT32": 1, "UINT64": 7, "FP32": 0.5, "BOOL": False, "UINT8": 0}
OTHER_VALUES: dict[str, Any] = {
    "max_tokens": 4,
    "bad_words": "zzz",
    "stop_words": "zzz",
    "end_id": -1,
    "guided_decoding_guide_type": "regex",
    "guided_decoding_guide": "[ab]{4}",
}
"""Of what an ensemble takes, so that a request with all its inputs gets an answer."""
TYPES = {"BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "UINT8": np.uint8}
# Names of what a request lacks, as the ensemble's client and as its step know them.
NEEDED = {"text_input": "QUERY", "max_tokens": "REQUEST_OUTPUT_LEN"}


def committed_ensembles() -> set[str]:
    """Names of all ensembles in the repository's folders of models."""
    found = set()
    for path in [*ROOT.glob("model_repository/*/config.pbtxt"), *ROOT.glob("examples/*/config.pbtxt")]:
        config: Any = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
        if config.platform == "ensemble":
            found.add(path.parent.name)
    return found


def test_every_ensemble_is_tried_here() -> None:
    assert committed_ensembles() == {name for name, model in MODELS.items() if model.steps}


def value_of(tensor: Tensor) -> Any:
    return OTHER_VALUES.get(tensor.name, VALUES[tensor.data_type])


def outcome(answer: Callable[[], Any]) -> str:
    """The error of an answer; empty for one that is none."""
    try:
        answer()
    except TritonError as error:
        return error.error
    return ""


class Doors:
    """Triton's doors of one server.

    Args:
        server: the server.
        decoupled: it takes no unary calls.
    """

    def __init__(self, server: RunningServer, *, decoupled: bool) -> None:
        self.server = server
        self.decoupled = decoupled

    def outcomes(self, model: str, inputs: Collection[Tensor]) -> Iterator[tuple[str, str]]:
        """Each door, and the error of a request with these inputs there."""
        body = {tensor.name: value_of(tensor) for tensor in inputs}
        yield "generate", outcome(lambda: self._post(f"{model}/generate", body))
        yield "generate_stream", outcome(lambda: list(generate_stream(self.server.http_url, model, body)))
        if self.decoupled and "stream" in body:
            streamed = {**body, "stream": True}
            yield (
                "generate_stream, streamed",
                outcome(lambda: list(generate_stream(self.server.http_url, model, streamed))),
            )
        tensors = [_input(tensor, batched=MODELS[model].max_batch_size > 0) for tensor in inputs]
        for empty_final in (True, False):
            with GrpcStream(self.server.grpc_url) as stream:
                stream.send(model, tensors, empty_final=empty_final)
                yield f"gRPC, {empty_final=}", outcome(partial(_read, stream, empty_final=empty_final))

    def _post(self, path: str, body: dict[str, Any]) -> None:
        url = f"{self.server.http_url}/v2/models/{path}"
        answer = httpx.post(url, json=body, timeout=PATIENCE_S).json()
        if "error" in answer:
            raise TritonError(0, answer["error"])


def _read(stream: GrpcStream, *, empty_final: bool) -> None:
    if empty_final:
        list(stream.responses())
    else:
        stream.first()


def _input(tensor: Tensor, *, batched: bool) -> grpcclient.InferInput:
    shape = [1] * (len(tensor.dims) + batched)
    if tensor.data_type == "STRING":
        return infer_input(tensor.name, np.full(shape, value_of(tensor).encode(), dtype=np.object_), "BYTES")
    return infer_input(tensor.name, np.full(shape, value_of(tensor), dtype=TYPES[tensor.data_type]), tensor.data_type)


@pytest.fixture(params=["decoupled", "one response"])
def doors(request: pytest.FixtureRequest) -> Doors:
    decoupled: bool = request.param == "decoupled"
    return Doors(request.getfixturevalue("server" if decoupled else "other_server"), decoupled=decoupled)


def check_ensemble(doors: Doors, name: str, *variants: Collection[str]) -> None:
    """Requests to an ensemble without some inputs are answered, or refused by the name of one that it needs."""

    first_step = set(MODELS[name].steps[0].inputs.values())

    def check(missing: Collection[str]) -> None:
        inputs = [tensor for tensor in MODELS[name].inputs if tensor.name not in missing]
        lacking = NEEDED.keys() & missing
        words = [word for needed in lacking for word in (needed, NEEDED[needed])]
        if first_step.isdisjoint(tensor.name for tensor in inputs):
            # Triton itself refuses a request, or a step, without any input.
            words = ["has 0 inputs"]
        for door, error in doors.outcomes(name, inputs):
            assert not words or any(word in error for word in words), (door, missing, error)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, variants))


@pytest.mark.parametrize("name", sorted(committed_ensembles()))
def test_each_input_is_left_out(doors: Doors, name: str) -> None:
    """And each of the others."""
    names = [tensor.name for tensor in MODELS[name].inputs]
    for door, error in doors.outcomes(name, MODELS[name].inputs):
        assert error == "", door
    singly = [[missing] for missing in names]
    all_but_one = [[other for other in names if other != left] for left in names]
    check_ensemble(doors, name, names, *singly, *all_but_one)


@pytest.mark.parametrize("name", sorted(committed_ensembles()))
def test_any_inputs_are_left_out(doors: Doors, name: str) -> None:
    names = [tensor.name for tensor in MODELS[name].inputs]

    @settings(max_examples=5, deadline=None, derandomize=True)
    @given(st.lists(st.sets(st.sampled_from(names)), min_size=4, max_size=4))
    def check(variants: list[set[str]]) -> None:
        check_ensemble(doors, name, *variants)

    check()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - committed_ensembles()))
def test_the_other_models_answer_without_any_of_their_inputs(doors: Doors, name: str) -> None:
    """With none, and with each by itself: most are refused, and none waits."""
    inputs = MODELS[name].inputs
    for given_inputs in ([], *([tensor] for tensor in inputs)):
        found = dict(doors.outcomes(name, given_inputs))
        assert all(found.values()) or given_inputs, (name, found)
