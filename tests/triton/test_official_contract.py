"""Foreign clients of `tensorrt_llm`, `preprocessing` and `postprocessing`: the official tensors over gRPC."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from openai_bls.launch.testing import RunningServer
from tests.triton.conftest import RAW, Reference
from tests.triton.triton_client import GrpcStream, TritonError, infer_input

pytestmark = pytest.mark.triton


def engine_inputs(prompt: list[int], max_tokens: int, **scalars: Any) -> list[grpcclient.InferInput]:
    """The required tensors of one request, and others as name=(value, datatype, numpy dtype)."""
    inputs = [
        infer_input("input_ids", np.array([prompt], dtype=np.int32), "INT32"),
        infer_input("input_lengths", np.array([[len(prompt)]], dtype=np.int32), "INT32"),
        infer_input("request_output_len", np.array([[max_tokens]], dtype=np.int32), "INT32"),
    ]
    for name, (value, datatype, dtype) in scalars.items():
        inputs.append(infer_input(name, np.array([[value]], dtype=dtype), datatype))
    return inputs


STREAMING = (True, "BOOL", np.bool_)


def without_end(tokens: tuple[int, ...], ends: set[int]) -> list[int]:
    return [token for token in tokens if token not in ends]


@pytest.fixture(scope="session")
def ends(reference: Reference) -> set[int]:
    return {reference.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}


def test_whole_and_streamed(server: RunningServer, reference: Reference, ends: set[int]) -> None:
    for golden in RAW:
        prompt = reference.prompt_token_ids(golden)
        expected = without_end(reference.token_ids(golden), ends)
        with GrpcStream(server.grpc_url) as stream:
            stream.send("tensorrt_llm", engine_inputs(prompt, 256))
            (whole,) = stream.responses()
        assert whole.as_numpy("output_ids").tolist() == [[expected]]
        assert whole.as_numpy("sequence_length").tolist() == [[len(expected)]]
        with GrpcStream(server.grpc_url) as stream:
            stream.send("tensorrt_llm", engine_inputs(prompt, 256, streaming=STREAMING))
            pieces = [r.as_numpy("output_ids").reshape(-1).tolist() for r in stream.responses()]
        assert len(pieces) > 1
        assert [token for piece in pieces for token in piece] == expected


def test_prompt_in_the_output(server: RunningServer, reference: Reference) -> None:
    prompt = reference.prompt_token_ids(RAW[0])
    inputs = engine_inputs(prompt, 4, exclude_input_in_output=(False, "BOOL", np.bool_))
    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", inputs)
        (whole,) = stream.responses()
    assert whole.as_numpy("output_ids").tolist() == [[[*prompt, *reference.token_ids(RAW[0], 4)]]]


def test_return_sequences_and_batch(server: RunningServer, reference: Reference) -> None:
    """A response for each row and sequence, tagged by its indices."""
    prompts = [reference.prompt_token_ids(golden) for golden in RAW[:2]]
    longest = max(map(len, prompts))
    inputs = [
        infer_input("input_ids", np.array([p + [0] * (longest - len(p)) for p in prompts], dtype=np.int32), "INT32"),
        infer_input("input_lengths", np.array([[len(p)] for p in prompts], dtype=np.int32), "INT32"),
        infer_input("request_output_len", np.full((2, 1), 8, dtype=np.int32), "INT32"),
        infer_input("num_return_sequences", np.full((2, 1), 2, dtype=np.int32), "INT32"),
    ]
    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", inputs)
        got = {
            (int(r.as_numpy("batch_index")[0, 0]), int(r.as_numpy("sequence_index")[0, 0])): r.as_numpy("output_ids")
            .reshape(-1)
            .tolist()
            for r in stream.responses()
        }
    expected = [list(reference.token_ids(golden, 8)) for golden in RAW[:2]]
    assert got == {(row, index): expected[row] for row in (0, 1) for index in (0, 1)}


def test_stop_request(server: RunningServer, reference: Reference) -> None:
    """A second request with the same id and stop=true ends the first."""
    prompt = reference.prompt_token_ids(RAW[0])
    inputs = engine_inputs(prompt, 1900, streaming=STREAMING, end_id=(-1, "INT32", np.int32))
    with GrpcStream(server.grpc_url) as first, GrpcStream(server.grpc_url) as second:
        first.send("tensorrt_llm", inputs, request_id="42")
        responses = first.responses()
        next(responses)
        second.send("tensorrt_llm", engine_inputs(prompt, 1, stop=(True, "BOOL", np.bool_)), request_id="42")
        assert list(second.responses()) == []
        rest = list(responses)
    assert len(rest) < 1900


def test_stop_of_an_unknown_request_is_no_error(server: RunningServer) -> None:
    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", engine_inputs([1], 1, stop=(True, "BOOL", np.bool_)), request_id="nobody")
        assert list(stream.responses()) == []


def test_stop_and_bad_words(server: RunningServer, reference: Reference) -> None:
    golden = RAW[0]
    prompt = reference.prompt_token_ids(golden)
    tokens = list(reference.token_ids(golden, 20))
    word = tokens[5:7]

    def words(name: str, ids: list[int]) -> grpcclient.InferInput:
        return infer_input(name, np.array([[ids, [len(ids)] + [-1] * (len(ids) - 1)]], dtype=np.int32), "INT32")

    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", [*engine_inputs(prompt, 20), words("stop_words_list", word)])
        (stopped,) = stream.responses()
    # The contract: the tokens of a matched stop word are delivered.
    assert stopped.as_numpy("output_ids").reshape(-1).tolist() == tokens[:7]
    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", [*engine_inputs(prompt, 20), words("bad_words_list", word)])
        (banned,) = stream.responses()
    output = banned.as_numpy("output_ids").reshape(-1).tolist()
    assert output[:6] == tokens[:6]
    assert all(output[i : i + 2] != word for i in range(len(output)))


@pytest.mark.parametrize(
    "inputs",
    [
        [infer_input("input_ids", np.array([[1, 2]], dtype=np.int32), "INT32")],
        engine_inputs([10_000_000], 4),
        engine_inputs([1], 4, runtime_top_p=(7.0, "FP32", np.float32)),
        engine_inputs([1], 4, beam_width=(2, "INT32", np.int32)),
        [infer_input("exchange_call", np.zeros((1, 5), dtype=np.uint8), "UINT8")],
    ],
    ids=["missing", "vocabulary", "top_p", "beam", "exchange"],
)
def test_bad_requests(server: RunningServer, inputs: list[grpcclient.InferInput]) -> None:
    with GrpcStream(server.grpc_url) as stream:
        stream.send("tensorrt_llm", inputs)
        with pytest.raises(TritonError) as caught:
            list(stream.responses())
    assert "Traceback" not in caught.value.error


def test_preprocessing_and_postprocessing(server: RunningServer, reference: Reference) -> None:
    client = grpcclient.InferenceServerClient(server.grpc_url)
    text = "What is machine learning? 你好 👩‍🚀"
    expected = reference.tokenizer(text)["input_ids"]
    result = client.infer("preprocessing", [_query(text)])
    assert result.as_numpy("INPUT_ID").tolist() == [expected]
    assert result.as_numpy("REQUEST_INPUT_LEN").tolist() == [[len(expected)]]
    tokens = infer_input("TOKENS_BATCH", np.array([[expected]], dtype=np.int32), "INT32")
    lengths = infer_input("SEQUENCE_LENGTH", np.array([[len(expected)]], dtype=np.int32), "INT32")
    back = client.infer("postprocessing", [tokens, lengths])
    assert back.as_numpy("OUTPUT").reshape(-1)[0].decode() == text
    client.close()


def _query(text: str) -> grpcclient.InferInput:
    array = np.array([[text.encode()]], dtype=np.object_)
    tensor = grpcclient.InferInput("QUERY", [1, 1], "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def test_metrics_count_requests(server: RunningServer) -> None:
    text = httpx.get(server.metrics_url).text
    assert 'nv_inference_request_success{model="preprocessing"' in text
