"""Foreign clients of `tensorrt_llm`, `preprocessing` and `postprocessing`: the official tensors over gRPC."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import RAW, ROOT
from tests.triton.reference import Reference
from tests.triton.triton_client import TIMEOUT, GrpcStream, TritonError, chat, generate, generate_stream, infer_input

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


def text_inputs() -> list[grpcclient.InferInput]:
    """A prompt and five tokens, for `ensemble` and `tensorrt_llm_bls`."""
    return [
        infer_input("text_input", np.array([["a"]], dtype=np.object_), "BYTES"),
        infer_input("max_tokens", np.array([[5]], dtype=np.int32), "INT32"),
    ]


STREAMING = (True, "BOOL", np.bool_)


def ask(
    server: RunningServer,
    inputs: list[grpcclient.InferInput],
    model: str = "tensorrt_llm",
    parameters: dict[str, Any] | None = None,
) -> list[Any]:
    """The responses of a model."""
    with GrpcStream(server.grpc_url) as stream:
        stream.send(model, inputs, parameters)
        return list(stream.responses())


def test_whole_and_streamed(server: RunningServer, reference: Reference) -> None:
    reference.generate(RAW[:5])
    for golden in RAW[:5]:
        prompt = reference.prompt_token_ids(golden)
        expected = reference.output_ids(golden)
        (whole,) = ask(server, engine_inputs(prompt, 256))
        assert whole.as_numpy("output_ids").tolist() == [[expected]]
        assert whole.as_numpy("sequence_length").tolist() == [[len(expected)]]
        assert log_probs_of(whole, len(expected))
        pieces = [
            r.as_numpy("output_ids").reshape(-1).tolist()
            for r in ask(server, engine_inputs(prompt, 256, streaming=STREAMING))
        ]
        assert len(pieces) > 1
        assert [token for piece in pieces for token in piece] == expected


def test_outputs_that_are_named(server: RunningServer) -> None:
    """Log-probabilities of a stream come when they are asked for as an output; logits are refused by name."""
    names = ["output_ids", "output_log_probs"]
    for outputs in (names, names[:1]):
        with GrpcStream(server.grpc_url) as stream:
            stream.send("tensorrt_llm", engine_inputs([5, 6], 4, streaming=STREAMING), outputs=outputs)
            found = [sorted(o.name for o in r.get_response().outputs) for r in stream.responses()]
        assert found == [outputs] * len(found) != []
    with GrpcStream(server.grpc_url) as stream:
        stream.send("ensemble", text_inputs(), outputs=["text_output", "cum_log_probs"])
        (whole,) = stream.responses()
        assert sorted(o.name for o in whole.get_response().outputs) == ["cum_log_probs", "text_output"]
        stream.send("tensorrt_llm_bls", text_inputs(), outputs=["text_output", "finish_reason", "output_log_probs"])
        (whole,) = stream.responses()
        assert whole.as_numpy("finish_reason").tolist() == [b"length"]
        assert whole.as_numpy("output_log_probs").size == 5
        stream.send("tensorrt_llm", engine_inputs([5, 6], 4), outputs=["output_ids", "context_logits"])
        with pytest.raises(TritonError, match="'context_logits'"):
            list(stream.responses())


def place_of(response: Any) -> tuple[int, int]:
    """Row and sequence."""
    return int(response.as_numpy("batch_index")[0, 0]), int(response.as_numpy("sequence_index")[0, 0])


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
    got = {place_of(r): r.as_numpy("output_ids").reshape(-1).tolist() for r in ask(server, inputs)}
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
        # The official client's parameter comes along.
        stop = engine_inputs(prompt, 1, stop=(True, "BOOL", np.bool_))
        second.send("tensorrt_llm", stop, request_id="42", parameters={"Streaming": True})
        assert list(second.responses()) == []
        rest = list(responses)
        assert len(rest) < 1900
        # A stop of an unknown request is no error.
        second.send("tensorrt_llm", engine_inputs([1], 1, stop=(True, "BOOL", np.bool_)), request_id="nobody")
        assert list(second.responses()) == []


def test_stop_and_bad_words(server: RunningServer, reference: Reference) -> None:
    golden = RAW[0]
    prompt = reference.prompt_token_ids(golden)
    tokens = list(reference.token_ids(golden, 20))
    word = tokens[5:7]

    def words(name: str, ids: list[int]) -> grpcclient.InferInput:
        return infer_input(name, np.array([[ids, [len(ids)] + [-1] * (len(ids) - 1)]], dtype=np.int32), "INT32")

    (stopped,) = ask(server, [*engine_inputs(prompt, 20), words("stop_words_list", word)])
    # The contract: the tokens of a matched stop word are delivered.
    assert stopped.as_numpy("output_ids").reshape(-1).tolist() == tokens[:7]
    (banned,) = ask(server, [*engine_inputs(prompt, 20), words("bad_words_list", word)])
    output = banned.as_numpy("output_ids").reshape(-1).tolist()
    assert output[:6] == tokens[:6]
    assert all(output[i : i + 2] != word for i in range(len(output)))


# Every rule has a unit test.
BAD = {
    "missing": [infer_input("input_ids", np.array([[1, 2]], dtype=np.int32), "INT32")],
    "vocabulary": engine_inputs([10_000_000], 4),
    "top_p": engine_inputs([1], 4, runtime_top_p=(7.0, "FP32", np.float32)),
    "exchange": [infer_input("exchange_call", np.zeros((1, 5), dtype=np.uint8), "UINT8")],
}


@pytest.mark.parametrize("inputs", BAD.values(), ids=BAD)
def test_bad_requests(server: RunningServer, inputs: list[grpcclient.InferInput]) -> None:
    with pytest.raises(TritonError) as caught:
        ask(server, inputs)
    assert "Traceback" not in caught.value.error


def test_preprocessing_and_postprocessing(server: RunningServer, reference: Reference) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        text = "What is machine learning? 你好 👩‍🚀"
        expected = reference.tokenizer(text)["input_ids"]
        result = client.infer("preprocessing", [infer_input("QUERY", [[text.encode()]], "BYTES")])
        assert result.as_numpy("INPUT_ID").tolist() == [expected]
        assert result.as_numpy("REQUEST_INPUT_LEN").tolist() == [[len(expected)]]
        tokens = infer_input("TOKENS_BATCH", np.array([[expected]], dtype=np.int32), "INT32")
        lengths = infer_input("SEQUENCE_LENGTH", np.array([[len(expected)]], dtype=np.int32), "INT32")
        back = client.infer("postprocessing", [tokens, lengths])
        assert back.as_numpy("OUTPUT").reshape(-1)[0].decode() == text
        client.close()


LOG_PROBS = (True, "BOOL", np.bool_)


def log_probs_of(response: Any, length: int) -> list[float]:
    """`output_log_probs`, after a look at both outputs."""
    found = response.as_numpy("output_log_probs")
    assert found.shape == (1, 1, length)
    assert response.as_numpy("cum_log_probs") == pytest.approx(found.sum(axis=-1), abs=1e-3)
    values: list[float] = found.reshape(-1).tolist()
    return values


def test_log_probs(server: RunningServer, reference: Reference) -> None:
    """Of the new tokens when whole, of all so far in each response of a stream."""
    for golden in RAW[:3]:
        prompt = reference.prompt_token_ids(golden)
        tokens = reference.output_ids(golden, 24)
        expected = reference.log_probs(prompt, tokens)
        inputs = engine_inputs(
            prompt, 24, return_log_probs=LOG_PROBS, exclude_input_in_output=(False, "BOOL", np.bool_)
        )
        (whole,) = ask(server, inputs)
        assert whole.as_numpy("output_ids").tolist() == [[[*prompt, *tokens]]]
        assert log_probs_of(whole, len(tokens)) == pytest.approx(expected, abs=1e-3)
        responses = ask(server, engine_inputs(prompt, 24, return_log_probs=LOG_PROBS, streaming=STREAMING))
        done = 0
        for response in responses:
            done += response.as_numpy("output_ids").size
            assert log_probs_of(response, done) == pytest.approx(expected[:done], abs=1e-3)
        assert done == len(tokens)


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
def test_log_probs_of_ensembles(server: RunningServer, reference: Reference, name: str) -> None:
    """Unless a client does not want them, and then the ensemble answers without."""
    golden = RAW[0]
    body = {"text_input": golden.raw, "max_tokens": 6}
    expected = reference.log_probs(reference.prompt_token_ids(golden), list(reference.token_ids(golden, 6)))
    plain = generate(server.http_url, name, {**body, "return_log_probs": False})
    assert {"cum_log_probs", "output_log_probs"}.isdisjoint(plain)
    assert generate(server.http_url, name, body)["output_log_probs"] == pytest.approx(expected, abs=1e-3)
    whole = generate(server.http_url, name, {**body, "return_log_probs": True})
    assert whole["text_output"] == plain["text_output"]
    assert whole["output_log_probs"] == pytest.approx(expected, abs=1e-3)
    assert whole["cum_log_probs"] == pytest.approx(sum(expected), abs=2e-3)
    events = list(generate_stream(server.http_url, name, {**body, "return_log_probs": True, "stream": True}))
    assert "".join(event["text_output"] for event in events) == plain["text_output"]
    assert events[-1]["output_log_probs"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
def test_penalties_and_bias_of_words(server: RunningServer, name: str) -> None:
    body = {"text_input": RAW[0].raw, "max_tokens": 48}

    def text(**fields: Any) -> str:
        found: str = generate(server.http_url, name, {**body, **fields})["text_output"]
        return found

    plain = text()
    assert text(repetition_penalty=2.0) == text(repetition_penalty=2.0) != plain
    word = " " + plain.split()[2]
    assert word not in text(embedding_bias_words=[word], embedding_bias_weights=[-100.0])
    favour = {"embedding_bias_words": [word, "?"], "embedding_bias_weights": [25.0, -25.0]}
    favoured = text(**favour)
    assert favoured.count(word) > 10
    assert text(**favour, frequency_penalty=2.0).count(word) < favoured.count(word)
    with pytest.raises(TritonError, match=r"(?i)'embedding_bias_weights'"):
        text(embedding_bias_words=[word, "x"], embedding_bias_weights=[-100.0])


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "color": {"enum": ["red", "green"]}},
    "required": ["ok", "color"],
    "additionalProperties": False,
}
TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "[xyz]{4}"}}
# Guide type, guide, and what the whole output must match.
GUIDES = [
    ("regex", "[0-9]{3}-(yes|no)", r"[0-9]{3}-(yes|no)"),
    ("json_schema", json.dumps(SCHEMA), r'\{"ok": ?(true|false), ?"color": ?"(red|green)"\}'),
    ("ebnf_grammar", 'root ::= "ja" | "nein"', r"ja|nein"),
    ("structural_tag", json.dumps(TAG), r"[xyz]{4}"),
    ("json", "", r'\s*[\[{"\-0-9tfn].*'),
]


@pytest.mark.parametrize(("kind", "guide", "pattern"), GUIDES, ids=[kind for kind, _, _ in GUIDES])
def test_guides(server: RunningServer, reference: Reference, kind: str, guide: str, pattern: str) -> None:
    """Whole and streamed, over tensorrt_llm and as text."""
    prompt = reference.prompt_token_ids(RAW[0])
    fields = {"guided_decoding_guide_type": kind, **({"guided_decoding_guide": guide} if guide else {})}
    tensors: dict[str, Any] = {name: (text.encode(), "BYTES", np.object_) for name, text in fields.items()}
    (whole,) = ask(server, engine_inputs(prompt, 64, **tensors))
    text = reference.tokenizer.decode(whole.as_numpy("output_ids").reshape(-1).tolist())
    assert re.fullmatch(pattern, text, re.DOTALL), text
    body = {"text_input": RAW[0].raw, "max_tokens": 64, **fields}
    for name in ("ensemble", "tensorrt_llm_bls"):
        assert generate(server.http_url, name, body)["text_output"] == text
        events = generate_stream(server.http_url, name, {**body, "stream": True})
        assert "".join(event["text_output"] for event in events) == text


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_keys_that_are_no_inputs(server: RunningServer, name: str) -> None:
    """Triton makes request parameters of them, for the steps of an ensemble too."""
    body: dict[str, Any] = {"text_input": "Hello", "max_tokens": 4}
    if name == "tensorrt_llm":
        body = {"input_ids": [5, 6], "input_lengths": 2, "request_output_len": 4}
    assert generate(server.http_url, name, {"id": "mine", **body})
    # `Streaming` is known, from the official client, but what streams is the input `streaming` or `stream`.
    for key, value in (("temprature", 1), ("image_url_input", 1), ("Streaming", True)):
        with pytest.raises(TritonError, match=f"'{key}'"):
            generate(server.http_url, name, {**body, key: value})


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
def test_the_prompt_and_the_shape_of_text(server: RunningServer, name: str) -> None:
    """As the official end_to_end_grpc_client.py sends and reads them."""
    prompt = RAW[0].raw
    inputs = [
        infer_input("text_input", np.array([[prompt]], dtype=np.object_), "BYTES"),
        infer_input("max_tokens", np.array([[8]], dtype=np.int32), "INT32"),
        infer_input("exclude_input_in_output", np.array([[False]]), "BOOL"),
    ]
    (whole,) = ask(server, inputs, name)
    (text,) = whole.as_numpy("text_output")
    answer = generate(server.http_url, name, {"text_input": prompt, "max_tokens": 8})["text_output"]
    assert text.decode() == prompt + answer
    (again,) = ask(server, inputs, name, {"Streaming": False})
    assert again.as_numpy("text_output").tolist() == [text]


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_unary_calls_of_a_decoupled_model(server: RunningServer, name: str) -> None:
    """Triton's own errors, before any model sees the call; the guide for what they mean has their text."""
    page = (ROOT / "docs" / "guides" / "migrate-tensorrtllm-backend.md").read_text(encoding="utf-8")
    guide = page.replace("\n", " ")
    shape = {"shape": [1, 1], "datatype": "INT32", "data": [5]}
    fields = [{"name": "text_input", **shape, "datatype": "BYTES", "data": ["a"]}, {"name": "max_tokens", **shape}]
    inputs = text_inputs()
    if name == "tensorrt_llm":
        fields, inputs = (
            [{"name": "input_ids", **shape}, {"name": "request_output_len", **shape}],
            engine_inputs([5], 5),
        )
    response = httpx.post(f"{server.http_url}/v2/models/{name}/infer", json={"inputs": fields}, timeout=TIMEOUT)
    assert response.status_code == 501
    assert response.json()["error"] in guide
    with grpcclient.InferenceServerClient(server.grpc_url) as client, pytest.raises(InferenceServerException) as caught:
        client.infer(name, inputs)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert caught.value.message() in guide


def test_the_llm_api_models_quick_start(server: RunningServer) -> None:
    """The body of its curl line, and what else that model takes, on tensorrt_llm_bls."""
    prompt = RAW[0].raw or ""
    expected = generate(server.http_url, "ensemble", {"text_input": prompt, "max_tokens": 50})["text_output"]
    body = {"text_input": prompt, "sampling_param_max_tokens": 50}
    assert generate(server.http_url, "tensorrt_llm_bls", body)["text_output"] == expected
    asked = {"return_finish_reason": True, "return_stop_reason": True, "return_cumulative_logprob": True}
    events = list(generate_stream(server.http_url, "tensorrt_llm_bls", {**body, **asked, "streaming": True}))
    assert "".join(event["text_output"] for event in events) == expected
    assert events[-1]["finish_reason"] in ("stop", "length")
    assert events[-1]["cumulative_logprob"] < 0
    stop = expected[10:14]
    answer = generate(server.http_url, "tensorrt_llm_bls", {**body, **asked, "sampling_param_stop": [stop]})
    assert answer["text_output"] == expected[: expected.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    with pytest.raises(TritonError, match="'max_tokens'"):
        generate(server.http_url, "tensorrt_llm_bls", {"text_input": prompt})


def test_the_llm_api_models_cancel(server: RunningServer) -> None:
    """`generate` ends with the text so far at a second request with its id."""
    body = {"id": "42", "text_input": RAW[0].raw, "sampling_param_max_tokens": 1900, "end_id": -1}
    body["return_num_output_tokens"] = True
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(generate, server.http_url, "tensorrt_llm_bls", body)
        # A stop that comes before its request is no error, and stops nothing.
        while not answer.done():
            stop = {"id": "42", "text_input": "", "stop": True}
            assert generate(server.http_url, "tensorrt_llm_bls", stop)["text_output"] == ""
        assert answer.result()["num_output_tokens"] < 1900
    with pytest.raises(TritonError, match="'stop'"):
        generate(server.http_url, "tensorrt_llm_bls", {"text_input": "", "stop": True})


def test_stop_words_are_matched_in_the_text(server: RunningServer, reference: Reference) -> None:
    """Those that begin and end within tokens too, whole and streamed; the text ends with them, as officially."""
    golden = RAW[0]
    expected = golden.answer
    for start, end in ((5, 9), (11, 18)):
        stop = expected[start:end]
        body = {"text_input": golden.raw, "max_tokens": 100, "stop_words": [stop, ""]}
        until = expected[: expected.index(stop) + len(stop)]
        asked = {"return_num_input_tokens": True, "return_num_output_tokens": True}
        whole = generate(server.http_url, "tensorrt_llm_bls", {**body, **asked})
        assert whole["text_output"] == until
        assert whole["num_input_tokens"] == len(reference.prompt_token_ids(golden))
        assert 0 < whole["num_output_tokens"] < len(reference.output_ids(golden))
        events = generate_stream(server.http_url, "tensorrt_llm_bls", {**body, "stream": True})
        assert "".join(event["text_output"] for event in events) == until


def test_rows_and_sequences_of_text(server: RunningServer) -> None:
    """A response for each row and sequence, tagged by its indices."""
    inputs = [
        infer_input("text_input", np.array([[RAW[0].raw], [RAW[1].raw]], dtype=np.object_), "BYTES"),
        infer_input("max_tokens", np.full((2, 1), 8, dtype=np.int32), "INT32"),
        infer_input("num_return_sequences", np.full((2, 1), 2, dtype=np.int32), "INT32"),
    ]
    got = {place_of(r): r.as_numpy("text_output")[0] for r in ask(server, inputs, "tensorrt_llm_bls")}
    expected = [
        generate(server.http_url, "ensemble", {"text_input": golden.raw, "max_tokens": 8})["text_output"].encode()
        for golden in RAW[:2]
    ]
    assert got == {(row, index): expected[row] for row in (0, 1) for index in (0, 1)}


IM_START = "<|im_start|>"
SPECIAL_STOPS = ([IM_START], [IM_START * 3], ["zzz", IM_START + IM_START])


@pytest.mark.parametrize("stop", SPECIAL_STOPS, ids=lambda stop: stop[-1])
def test_stop_words_that_are_special_tokens(server: RunningServer, reference: Reference, stop: list[str]) -> None:
    """By id, at every door: a bias has the model write nothing else, which no text shows."""
    (token_id,) = reference.tokenizer.encode(IM_START, add_special_tokens=False)
    tokens = stop[-1].count(IM_START)
    body: dict[str, Any] = {"text_input": "Hello", "max_tokens": 9, "stop_words": stop}
    body |= {"embedding_bias_words": [IM_START], "embedding_bias_weights": [100.0], "end_id": -1}
    asked = {"return_num_output_tokens": True, "return_stop_reason": True}
    answer = generate(server.http_url, "tensorrt_llm_bls", {**body, **asked})
    assert (answer["text_output"], answer["num_output_tokens"], answer["stop_reason"]) == ("", tokens, stop[-1])
    events = list(generate_stream(server.http_url, "tensorrt_llm_bls", {**body, **asked, "stream": True}))
    assert events[-1]["num_output_tokens"] == tokens
    # The engine's own stop words are ids.
    whole = generate(server.http_url, "ensemble", {**body, "return_log_probs": True})
    assert (whole["text_output"], np.size(whole["output_log_probs"])) == ("", tokens)
    fields = {"prompt": "Hello", "max_tokens": 9, "ignore_eos": True, "stop": stop, "temperature": 0}
    fields |= {"logit_bias": {str(token_id): 100}}
    on_v1 = httpx.post(
        f"{server.openai_url}/completions", json={"model": "openai_bls", **fields}, timeout=TIMEOUT
    ).json()
    on_triton = chat(server.http_url, {"request": json.dumps(fields)})
    for found in (on_v1, on_triton):
        assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("", "stop")
        assert found["usage"]["completion_tokens"] == tokens


def test_stop_words_that_can_never_match(server: RunningServer, reference: Reference) -> None:
    end = reference.tokenizer.decode([reference.tokenizer.eos_token_id])
    body = {"text_input": "Hello", "max_tokens": 4}
    for name, field in (("tensorrt_llm_bls", "stop_words"), ("ensemble", "stop_words_list")):
        with pytest.raises(TritonError, match=f"'{field}'"):
            generate(server.http_url, name, {**body, "stop_words": end + "\n"})
        assert generate(server.http_url, name, {**body, "stop_words": end})
    for fields, param in (({"stop": ["x", f"{end}\n"]}, "stop[1]"), ({"stop_token_ids": [10**9]}, "stop_token_ids[0]")):
        sent = {"model": "openai_bls", "prompt": "Hello", **fields}
        refused = httpx.post(f"{server.openai_url}/completions", json=sent, timeout=TIMEOUT)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_vllms_form(server: RunningServer) -> None:
    """The bodies of vllm_backend's README, and what openai_bls says to them."""
    prompt = RAW[0].raw or ""
    expected = generate(server.http_url, "ensemble", {"text_input": prompt, "max_tokens": 12})["text_output"]
    sampling = json.dumps({"temperature": "0", "max_tokens": 12})
    body = {"text_input": prompt, "stream": False, "sampling_parameters": sampling, "return_num_output_tokens": True}
    answer = generate(server.http_url, "tensorrt_llm_bls", body)
    assert (answer["text_output"], answer["num_output_tokens"]) == (expected, 12)
    nested = {"text_input": prompt, "parameters": {"stream": False, "temperature": 0, "max_tokens": 12}}
    assert generate(server.http_url, "tensorrt_llm_bls", nested)["text_output"] == expected
    events = generate_stream(server.http_url, "tensorrt_llm_bls", {**body, "stream": True})
    assert "".join(event["text_output"] for event in events) == expected
    inputs = [
        infer_input("text_input", np.array([[prompt]], dtype=np.object_), "BYTES"),
        infer_input("sampling_parameters", np.array([[sampling]], dtype=np.object_), "BYTES"),
    ]
    (whole,) = ask(server, inputs, "tensorrt_llm_bls")
    assert whole.as_numpy("text_output").tolist() == [expected.encode()]
    for field, refused in (
        ("sampling_parameters.best_of", {**body, "sampling_parameters": '{"best_of": 2}'}),
        ("return_log_probs", {**body, "return_logprobs": True}),
    ):
        with pytest.raises(TritonError, match=f"'{field}'"):
            generate(server.http_url, "tensorrt_llm_bls", refused)
    with pytest.raises(TritonError, match="tensorrt_llm_bls"):
        generate(server.http_url, "ensemble", body)
    with pytest.raises(TritonError) as caught:
        chat(server.http_url, body)
    assert caught.value.body["error"]["param"] == "text_input"
    with pytest.raises(TritonError, match="unexpected inference input"):
        ask(server, inputs, "openai_bls")
