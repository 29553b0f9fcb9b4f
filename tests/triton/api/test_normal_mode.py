"""An engine whose decoupled_mode is false: Triton's unary calls, for it and for the ensembles around it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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

VENDOR = ROOT / "tests" / "triton" / "operation" / "clients" / "vendor"


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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("release", "options"),
    [("0.7.2", []), ("0.8.0", []), ("0.10.0", ["--test-bls"]), ("0.18.2", ["--return-log-probs", "--test-bls"])],
)
def test_the_official_end_to_end_test(
    server: RunningServer, tmp_path: Path, release: str, options: list[str], protocol: str
) -> None:
    """end_to_end_test.py as it is: three models by hand, ensemble and BLS say the same, then all prompts at once."""
    words = [{"input": golden.raw, "instruction": "Why?", "output": "word " * 12} for golden in RAW[:3]]
    dataset = tmp_path / "dataset.json"
    dataset.write_text(json.dumps(words), encoding="utf-8")
    port = server.ports.http if protocol == "http" else server.ports.grpc
    script = VENDOR / "tensorrtllm_backend" / f"v{release}" / "end_to_end_test.py"
    command: list[str | Path] = [
        sys.executable,
        script,
        "-u",
        f"127.0.0.1:{port}",
        "-i",
        protocol,
        "--dataset",
        dataset,
        *options,
    ]
    done = subprocess.run(
        [*command, "--max-input-len", "500"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Functionality test succeed" in done.stdout
    assert "Total Latency" in done.stdout


def test_the_official_scripts_are_as_they_were_published() -> None:
    versions = (VENDOR / "versions.txt").read_text(encoding="utf-8")
    recorded = dict(re.findall(r"^  (\S+) ([0-9a-f]{128})$", versions, re.MULTILINE))
    assert recorded == {
        path.relative_to(VENDOR).as_posix(): hashlib.sha512(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*.py")
    }


def test_the_official_client_gets_the_prompt_that_it_cuts_off(
    client: grpcclient.InferenceServerClient, reference: Reference
) -> None:
    """inflight_batcher_llm_client.py: without options, and with --exclude-input-in-output from 0.14 on."""
    reference.generate(RAW[:1])
    prompt, expected = reference.prompt_token_ids(RAW[0]), reference.output_ids(RAW[0])
    excluded: dict[str, Any] = {"exclude_input_in_output": (True, "BOOL", np.bool_)}
    for given, ids in (({}, [*prompt, *expected]), (excluded, expected)):
        inputs = engine_inputs(prompt, 256, streaming=(False, "BOOL", np.bool_), **given)
        answer = client.infer("tensorrt_llm", inputs, parameters={"Streaming": False})
        assert answer.as_numpy("output_ids").tolist() == [[ids]]
        assert answer.as_numpy("sequence_length").tolist() == [[len(ids)]]


def test_what_takes_several_responses_is_refused(client: grpcclient.InferenceServerClient) -> None:
    several: dict[str, dict[str, Any]] = {
        "streaming": {"streaming": STREAMING},
        "num_return_sequences": {"num_return_sequences": (2, "INT32", np.int32)},
    }
    for name, given in several.items():
        with pytest.raises(InferenceServerException, match=f"'{name}'"):
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
    assert "'temprature'" in refused.json()["error"]
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
