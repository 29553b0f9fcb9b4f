"""The contenders of `benchmarks.serve_layer` on the real server: the right tokens, and a whole run of the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks import serve_layer
from benchmarks.contenders.servers import BARE, ENSEMBLE, Contender, Setup, running
from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import CHECKPOINT
from tests.triton.triton_client import GrpcStream, TritonError, generate_stream, infer_input

pytestmark = pytest.mark.triton

TOKENIZER = CHECKPOINT / "tokenizer.json"
PROMPT = "What is machine learning?"
TOKEN_IDS = (300, 301, 302)


def _run(contender: Contender) -> Iterator[RunningServer]:
    with running(contender, Setup(Path(), TOKENIZER, TOKEN_IDS), 0.0) as server:
        assert server.server is not None
        yield server.server


@pytest.fixture(scope="module")
def bare() -> Iterator[RunningServer]:
    yield from _run(BARE)


@pytest.fixture(scope="module")
def ensemble() -> Iterator[RunningServer]:
    yield from _run(ENSEMBLE)


def test_bare_sends_one_id_a_response(bare: RunningServer) -> None:
    events = list(generate_stream(bare.http_url, "bare", {"input_ids": [1, 2, 3], "request_output_len": 7}))
    assert [event["output_ids"] for event in events] == [300, 301, 302, 300, 301, 302, 300]


def test_bare_over_grpc(bare: RunningServer) -> None:
    inputs = [
        infer_input("input_ids", np.array([1, 2, 3], np.int32), "INT32"),
        infer_input("request_output_len", np.array([4], np.int32), "INT32"),
    ]
    with GrpcStream(bare.grpc_url) as stream:
        stream.send("bare", inputs)
        assert [r.as_numpy("output_ids").tolist() for r in stream.responses()] == [[300], [301], [302], [300]]


def test_bare_refuses_a_length_of_nothing(bare: RunningServer) -> None:
    with pytest.raises(TritonError, match="at least 1"):
        list(generate_stream(bare.http_url, "bare", {"input_ids": [1], "request_output_len": 0}))


def test_the_ensemble_sends_the_text_of_each_token(ensemble: RunningServer) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    expected = [tokenizer.decode([TOKEN_IDS[i % 3]]) for i in range(5)]
    events = generate_stream(ensemble.http_url, "ensemble", {"text_input": PROMPT, "max_tokens": 5})
    assert [event["text_output"] for event in events] == expected
    inputs = [infer_input("text_input", [PROMPT], "BYTES"), infer_input("max_tokens", np.array([5], np.int32), "INT32")]
    with GrpcStream(ensemble.grpc_url) as stream:
        stream.send("ensemble", inputs)
        assert [r.as_numpy("text_output").item().decode() for r in stream.responses()] == expected


def test_the_command(repository: Path, tmp_path: Path) -> None:
    """Every stage once, as short as it gets: nothing fails, and what is judged has been measured."""
    options = ["--quick", "--contenders", "bare,ours", "--concurrency", "4", "--seconds", "0.2", "--crowd", "20"]
    options += ["--paced-concurrency", "4", "--repository", str(repository)]
    options += ["--singles", "2", "--output-tokens", "16"]
    assert serve_layer.main([*options, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "serve_layer.json").read_bytes())
    assert document["notes"] == []
    assert not any(cell["failed"] for cell in document["cells"])
    assert {cell["stage"] for cell in document["cells"]} == {"throughput", "crowd", "first token", "paced"}
