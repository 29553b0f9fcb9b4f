"""An engine whose decoupled_mode is false: Triton's unary calls, for it and for the ensembles around it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from openai_bls.launcher.testing import RunningServer
from tests.triton.api.test_official_contract import STREAMING, engine_inputs
from tests.triton.conftest import RAW, ROOT
from tests.triton.reference import Reference
from tests.triton.triton_client import TIMEOUT, generate, generate_stream, infer_input

pytestmark = pytest.mark.triton


@pytest.fixture
def server(other_server: RunningServer) -> RunningServer:
    return other_server


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        yield client


def test_unary_calls_of_the_engine(
    server: RunningServer, client: grpcclient.InferenceServerClient, reference: Reference
) -> None:
    """Many at a time, each with its own text."""
    reference.generate(RAW[:8])
    prompts = [reference.prompt_token_ids(golden) for golden in RAW[:8]]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda prompt: client.infer("tensorrt_llm", engine_inputs(prompt, 256)), prompts))
    for golden, result in zip(RAW, results, strict=False):
        assert result.as_numpy("output_ids").tolist() == [[reference.output_ids(golden)]]


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
def test_unary_calls_of_the_ensembles(
    server: RunningServer, client: grpcclient.InferenceServerClient, name: str
) -> None:
    """ModelInfer, /infer and generate say the same."""
    inputs = [
        infer_input("text_input", np.array([[RAW[0].raw]], dtype=np.object_), "BYTES"),
        infer_input("max_tokens", np.array([[32]], dtype=np.int32), "INT32"),
    ]
    (text,) = client.infer(name, inputs).as_numpy("text_output")
    body = {
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [RAW[0].raw]},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [32]},
        ]
    }
    answer = httpx.post(f"{server.http_url}/v2/models/{name}/infer", json=body, timeout=TIMEOUT).json()
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["text_output"]["data"] == [text.decode()]
    whole = generate(server.http_url, name, {"text_input": RAW[0].raw, "max_tokens": 32})
    assert whole["text_output"] == text.decode() != ""


def test_the_steps_of_the_official_end_to_end_test(client: grpcclient.InferenceServerClient) -> None:
    """Tensors of end_to_end_test.py of 0.7.2 to 0.18.2, by hand and by the ensemble."""
    words = [
        infer_input(name, np.array([[""]], dtype=np.object_), "BYTES") for name in ("BAD_WORDS_DICT", "STOP_WORDS_DICT")
    ]
    query = infer_input("QUERY", np.array([[RAW[0].raw]], dtype=np.object_), "BYTES")
    length = np.array([[16]], dtype=np.int32)
    prompt = client.infer("preprocessing", [query, *words, infer_input("REQUEST_OUTPUT_LEN", length, "INT32")])
    names = {
        "INPUT_ID": "input_ids", "REQUEST_INPUT_LEN": "input_lengths", "REQUEST_OUTPUT_LEN": "request_output_len",
        "DECODER_INPUT_ID": "decoder_input_ids", "OUT_END_ID": "end_id", "OUT_PAD_ID": "pad_id",
    }  # fmt: skip
    tokens = client.infer(
        "tensorrt_llm", [infer_input(name, prompt.as_numpy(given), "INT32") for given, name in names.items()]
    )
    outputs = ("cum_log_probs", "output_log_probs", "context_logits", "generation_logits")
    back = [("TOKENS_BATCH", "output_ids", "INT32"), ("SEQUENCE_LENGTH", "sequence_length", "INT32")]
    back += [(name.upper(), name, "FP32") for name in outputs]
    text = client.infer(
        "postprocessing", [infer_input(name, tokens.as_numpy(given), kind) for name, given, kind in back]
    )
    whole = client.infer(
        "ensemble",
        [
            infer_input("text_input", np.array([[RAW[0].raw]], dtype=np.object_), "BYTES"),
            infer_input("max_tokens", length, "INT32"),
        ],
    )
    assert text.as_numpy("OUTPUT").tolist() == whole.as_numpy("text_output").tolist() != [b""]
    for name in outputs:
        expected = pytest.approx(whole.as_numpy(name), abs=1e-4)
        assert tokens.as_numpy(name) == expected
        assert text.as_numpy(f"OUT_{name.upper()}") == expected
    # Dummies, as they were when clients read them unasked.
    assert whole.as_numpy("context_logits").tolist() == [[[0.0]]]
    assert whole.as_numpy("generation_logits").tolist() == [[[[0.0]]]]
    assert whole.as_numpy("output_log_probs").shape == (1, 1, 16)


def test_what_takes_several_responses_is_refused(client: grpcclient.InferenceServerClient) -> None:
    several: dict[str, dict[str, Any]] = {
        "streaming": {"streaming": STREAMING},
        "num_return_sequences": {"num_return_sequences": (2, "INT32", np.int32)},
    }
    for name, given in several.items():
        with pytest.raises(InferenceServerException, match=f"'{name}' asks for several responses"):
            client.infer("tensorrt_llm", engine_inputs([5, 6], 4, **given))


def test_stop_request(client: grpcclient.InferenceServerClient) -> None:
    """The official client's early stop, in its other mode: the stop has no outputs, the request its tokens so far."""
    answers: list[Any] = []
    parameters = {"Streaming": False}
    long = engine_inputs([5, 6], 1500, end_id=(-1, "INT32", np.int32))
    stop = engine_inputs([5], 1, stop=(True, "BOOL", np.bool_))
    client.async_infer(
        "tensorrt_llm",
        long,
        request_id="12345",
        callback=lambda result, error: answers.append(error or result),
        parameters=parameters,
    )
    # A stop that comes before its request is no error, and stops nothing.
    while not answers:
        stopped = client.infer("tensorrt_llm", stop, request_id="12345", parameters=parameters)
        assert not stopped.get_response().outputs
    tokens = answers[0].as_numpy("output_ids")
    assert tokens.shape[:2] == (1, 1)
    assert tokens.size < 1500


def test_tritons_paths_on_the_port_of_v1(server: RunningServer) -> None:
    """The index, which is closed on Triton's own port, loads, which stay closed, and generate of the text models."""
    v1 = server.openai_url.removesuffix("/v1")
    closed = httpx.post(f"{server.http_url}/v2/repository/index", timeout=TIMEOUT)
    guide = (ROOT / "docs" / "guides" / "migrate-tensorrtllm-backend.md").read_text(encoding="utf-8")
    assert closed.status_code == 403
    assert f'"{closed.json()["error"].partition(",")[0]}"' in guide
    index = httpx.post(f"{v1}/v2/repository/index", timeout=TIMEOUT).json()
    assert {"name": "ensemble", "version": "1", "state": "READY"} in index
    assert httpx.post(f"{v1}/v2/repository/models/ensemble/unload", timeout=TIMEOUT).status_code == 404
    body = {"text_input": RAW[0].raw, "max_tokens": 8}
    for name in ("ensemble", "tensorrt_llm_bls"):
        assert generate(v1, name, body) == generate(server.http_url, name, body)
    (event,) = generate_stream(v1, "tensorrt_llm_bls", body)
    assert event["text_output"] == generate(v1, "ensemble", body)["text_output"]
    refused = httpx.post(f"{v1}/v2/models/ensemble/generate", json={**body, "temprature": 1}, timeout=TIMEOUT)
    assert refused.status_code == 400
    assert "'temprature' is not an input of this model" in refused.json()["error"]
    chat: Any = {"model": "openai_bls", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    raw = httpx.post(f"{v1}/v2/models/openai_bls/generate_stream", json={**chat, "stream": True}, timeout=TIMEOUT)
    assert raw.text.rstrip().endswith("data: [DONE]")
    own = httpx.post(f"{server.http_url}/v2/models/openai_bls/generate", json=chat, timeout=TIMEOUT)
    assert own.status_code == 500
    page = (ROOT / "docs" / "guides" / "triton.md").read_text(encoding="utf-8")
    assert f"`{own.json()['error'].rpartition(': ')[2]}`" in page


def test_v1_streams_all_the_same(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.openai_url, api_key="none") as sdk:
        messages: Any = [{"role": "user", "content": "Hello"}]
        chunks = list(sdk.chat.completions.create(model="openai_bls", messages=messages, max_tokens=8, stream=True))
        assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
