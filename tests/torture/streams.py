"""Known streams: questions on every door whose one right answer is known, whole or streamed, whatever else happens."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.keys import OWN, authorization
from tests.torture.doors import GRPC_OPTIONS, HOST, PATIENCE_SECONDS, Pending, closer
from tests.triton.conftest import CHATS, RAW, Golden

_LONGEST_TOKENS = 100
_GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 200}
_WORDS: dict[str, Any] = {"max_tokens": 200, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
_SHORT_CHATS = [golden for golden in CHATS if golden.tokens <= _LONGEST_TOKENS]
# /v1/messages and /v1/responses: one question.
_QUESTIONS = [golden for golden in _SHORT_CHATS if [m["role"] for m in golden.messages or []] == ["user"]]
_SHORT_RAW = [golden for golden in RAW if golden.tokens <= _LONGEST_TOKENS]


class SaidError(Exception):
    """The answer is an error in so many words."""


class BrokenOffError(Exception):
    """The connection ended before the answer, so that the client knows."""


class GivenUpError(Exception):
    """It was given up: Triton never ends what a model had when it died."""


class WrongError(Exception):
    """Wrong text, an end that is missing, or anything that is no answer."""


class LateError(WrongError):
    """No answer at all. On Triton's ports that is what a dead process leaves behind."""


class KnownStreams:
    """Client of one thread for all doors of `WAYS`.

    Args:
        ports: of the server.
        token_ids: raw prompt → its token ids and those of its answer.
        patience: seconds without a byte after which there is no answer.
    """

    def __init__(
        self,
        ports: Ports,
        token_ids: dict[str, tuple[list[int], list[int]]],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.pending: Pending | None = None
        self._ports = ports
        self._patience = patience
        self._token_ids = token_ids
        self._channel = grpc.insecure_channel(f"{HOST}:{ports.grpc}", GRPC_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Close what is open."""
        self._channel.close()

    def check(self, door: str, golden: Golden) -> None:
        """Ask a question and compare the answer.

        Raises:
            SaidError, BrokenOffError, GivenUpError, WrongError: there is no answer, or a wrong one.
        """
        pending = self.pending = Pending("openai" if door.startswith("/v1") else "http")
        try:
            text, ended = WAYS[door][0](self, golden)
        except TimeoutError:
            raise LateError(f"no answer in {self._patience:.0f} s") from None
        except (http.client.HTTPException, OSError) as error:
            raise BrokenOffError(repr(error)) from None
        except grpc.RpcError as error:
            code: Any = error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise LateError(f"no answer in {self._patience:.0f} s") from None
            raise SaidError(f"{code.name}: {error.details()}") from None
        finally:
            self.pending = None
            if pending.given_up:
                raise GivenUpError
        if not ended and golden.answer.startswith(text):
            raise WrongError(f"ends without an end after {text!r}")
        if text != golden.answer:
            raise WrongError(f"{text!r} instead of {golden.answer!r}")

    # --- HTTP ---

    @contextlib.contextmanager
    def _response(self, port: int, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, port, timeout=self._patience)
        try:
            connection.connect()
            if self.pending is not None:
                self.pending.give_up = closer(connection.sock)
            headers = {
                **{"content-type": "application/json", "connection": "close"},
                "authorization": authorization(OWN),
            }
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise SaidError(f"{response.status}: {response.read().decode(errors='replace')}")
            yield response
        finally:
            connection.close()

    def _whole(self, port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._response(port, path, body) as response:
            return _object(response.read())

    def _events(self, port: int, path: str, body: dict[str, Any]) -> list[Any]:
        """Data of the events; `[DONE]` is left as it is."""
        events: list[Any] = []
        with self._response(port, path, body) as response:
            # Reads to the end of the chunked body, or raises IncompleteRead.
            received = response.read()
        for line in received.split(b"\n"):
            if line.startswith(b"data: "):
                events.append("[DONE]" if line == b"data: [DONE]" else _object(line[6:]))
        return events

    def chat_v1(self, golden: Golden) -> tuple[str, bool]:
        answer = self._whole(self._ports.openai, "/v1/chat/completions", {"messages": golden.messages, **_GREEDY})
        return _chosen(answer)

    def chat_v1_stream(self, golden: Golden) -> tuple[str, bool]:
        body = {"messages": golden.messages, **_GREEDY, "stream": True}
        return _joined(self._events(self._ports.openai, "/v1/chat/completions", body), done=True)

    def completions_v1_stream(self, golden: Golden) -> tuple[str, bool]:
        body = {"prompt": golden.raw, **_GREEDY, "stream": True}
        return _joined(self._events(self._ports.openai, "/v1/completions", body), done=True)

    def responses_v1_stream(self, golden: Golden) -> tuple[str, bool]:
        body = {"input": golden.messages, "temperature": 0, "stream": True, "store": False}
        events = self._events(self._ports.openai, "/v1/responses", body)
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        last = events[-1] if events else {"type": ""}
        if last["type"] in ("error", "response.failed"):
            raise SaidError(str(last)[:300])
        return text, last["type"] == "response.completed"

    def messages_v1_stream(self, golden: Golden) -> tuple[str, bool]:
        body = {"model": "demo", "messages": golden.messages, **_GREEDY, "stream": True}
        events = self._events(self._ports.openai, "/v1/messages", body)
        for event in events:
            if event["type"] == "error":
                raise SaidError(str(event)[:300])
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas), bool(events) and events[-1]["type"] == "message_stop"

    def generate(self, golden: Golden) -> tuple[str, bool]:
        body = {"messages": json.dumps(golden.messages), **_GREEDY}
        return _chosen(json.loads(self._generated("openai_bls", body)["response"]))

    def generate_stream(self, golden: Golden) -> tuple[str, bool]:
        body = {"messages": json.dumps(golden.messages), **_GREEDY, "stream": True}
        events = self._events(self._ports.http, "/v2/models/openai_bls/generate_stream", body)
        return _joined([json.loads(event["response"]) for event in map(_no_error, events)], done=False)

    def _generated(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        return _no_error(self._whole(self._ports.http, f"/v2/models/{model}/generate", body))

    def text_generate(self, golden: Golden, model: str) -> tuple[str, bool]:
        return str(self._generated(model, {"text_input": golden.raw, **_WORDS})["text_output"]), True

    def text_generate_stream(self, golden: Golden, model: str) -> tuple[str, bool]:
        body = {"text_input": golden.raw, **_WORDS, "stream": True}
        events = self._events(self._ports.http, f"/v2/models/{model}/generate_stream", body)
        # These have no word for the end.
        return "".join(_no_error(event)["text_output"] for event in events), True

    # --- gRPC ---

    def _grpc(self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None) -> list[Any]:
        """Outputs of all responses: name → raw bytes; ended by the final one."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, given in inputs.items():
            array = np.asarray(given)
            kind = {"U": "BYTES", "b": "BOOL", "i": "INT32", "f": "FP32"}[array.dtype.kind]
            request.inputs.add(name=name, datatype=kind, shape=array.shape)
            if kind == "BYTES":
                texts = [text.encode() for text in array.reshape(-1).tolist()]
                raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            else:
                raw = array.astype({"BOOL": "?", "INT32": "<i4", "FP32": "<f4"}[kind]).tobytes()
            request.raw_input_contents.append(raw)
        for name, value in (parameters or {}).items():
            parameter = request.parameters[name]
            if isinstance(value, bool):
                parameter.bool_param = value
            else:
                parameter.int64_param = value
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        call = self._stub.ModelStreamInfer(iter([request]), timeout=self._patience)
        if self.pending is not None:
            self.pending.give_up = call.cancel
        found = []
        ended = False
        for response in call:
            if response.error_message:
                raise SaidError(response.error_message)
            outputs = response.infer_response.outputs
            if outputs:
                raws = response.infer_response.raw_output_contents
                found.append({output.name: raw for output, raw in zip(outputs, raws, strict=True)})
            ended = ended or response.infer_response.parameters["triton_final_response"].bool_param
        if not ended:
            raise WrongError(f"no final response after {len(found)}")
        return found

    def grpc_chat(self, golden: Golden) -> tuple[str, bool]:
        inputs = {"messages": [json.dumps(golden.messages)]}
        outputs = self._grpc("openai_bls", inputs, {"stream": True, "temperature": 0, "max_tokens": 200})
        return _joined([json.loads(output["response"][4:]) for output in outputs], done=False)

    def grpc_text(self, golden: Golden, model: str) -> tuple[str, bool]:
        inputs = {"text_input": [[golden.raw]], "max_tokens": [[200]], "end_id": [[2]], "stream": [[True]]}
        outputs = self._grpc(model, inputs)
        return b"".join(output["text_output"][4:] for output in outputs).decode(), True

    def grpc_engine(self, golden: Golden) -> tuple[str, bool]:
        """The engine's own tensors: token ids, which are known from before anything was broken."""
        prompt, expected = self._token_ids[golden.raw or ""]
        output = self.engine_ids(prompt)
        if output == expected:
            return golden.answer, True
        raise WrongError(f"token ids {output} instead of {expected}")

    def engine_ids(self, prompt: list[int]) -> list[int]:
        """Token ids of the engine's answer."""
        inputs = {"input_ids": [prompt], "input_lengths": [[len(prompt)]], "request_output_len": [[200]]}
        outputs = self._grpc("tensorrt_llm", {**inputs, "end_id": [[2]], "streaming": [[True]]})
        return [int(one) for output in outputs for one in np.frombuffer(output["output_ids"], dtype=np.int32)]

    def learn(self) -> None:
        """Fill the token ids, of a server with nothing broken.

        Raises:
            WrongError: their text is another one.
        """
        for golden in _SHORT_RAW:
            assert golden.raw is not None
            prompt = self._whole(self._ports.openai, "/v1/tokenize", {"prompt": golden.raw})["tokens"]
            answer = self.engine_ids(prompt)
            text = self._whole(self._ports.openai, "/v1/detokenize", {"tokens": answer})["prompt"]
            if not text.startswith(golden.answer):
                raise WrongError(f"{text!r} instead of {golden.answer!r}")
            self._token_ids[golden.raw] = (prompt, answer)


Way = Callable[[KnownStreams, Golden], tuple[str, bool]]
WAYS: dict[str, tuple[Way, list[Golden]]] = {
    "/v1/chat/completions": (KnownStreams.chat_v1, _SHORT_CHATS),
    "/v1/chat/completions stream": (KnownStreams.chat_v1_stream, _SHORT_CHATS),
    "/v1/completions stream": (KnownStreams.completions_v1_stream, _SHORT_RAW),
    "/v1/responses stream": (KnownStreams.responses_v1_stream, _QUESTIONS),
    "/v1/messages stream": (KnownStreams.messages_v1_stream, _QUESTIONS),
    "generate openai_bls": (KnownStreams.generate, _SHORT_CHATS),
    "generate_stream openai_bls": (KnownStreams.generate_stream, _SHORT_CHATS),
    "generate tensorrt_llm_bls": (partial(KnownStreams.text_generate, model="tensorrt_llm_bls"), _SHORT_RAW),
    "generate_stream tensorrt_llm_bls": (
        partial(KnownStreams.text_generate_stream, model="tensorrt_llm_bls"),
        _SHORT_RAW,
    ),
    "generate ensemble": (partial(KnownStreams.text_generate, model="ensemble"), _SHORT_RAW),
    "generate_stream ensemble": (partial(KnownStreams.text_generate_stream, model="ensemble"), _SHORT_RAW),
    "gRPC openai_bls": (KnownStreams.grpc_chat, _SHORT_CHATS),
    "gRPC tensorrt_llm_bls": (partial(KnownStreams.grpc_text, model="tensorrt_llm_bls"), _SHORT_RAW),
    "gRPC ensemble": (partial(KnownStreams.grpc_text, model="ensemble"), _SHORT_RAW),
    "gRPC tensorrt_llm": (KnownStreams.grpc_engine, _SHORT_RAW),
}
"""Door → how it is asked, what it is asked."""


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise WrongError(f"not JSON: {text[:300]!r}") from None
    if not isinstance(body, dict):
        raise WrongError(f"no object: {text[:300]!r}")
    return body


def _no_error(body: dict[str, Any]) -> dict[str, Any]:
    if "error" in body:
        raise SaidError(str(body["error"])[:300])
    return body


def _chosen(answer: dict[str, Any]) -> tuple[str, bool]:
    (choice,) = _no_error(answer)["choices"]
    return str(choice["message"]["content"]), choice["finish_reason"] == "stop"


def _joined(chunks: list[Any], *, done: bool) -> tuple[str, bool]:
    """Text of a chat's or completion's chunks, and whether its end was said."""
    text = ""
    ended = False
    for chunk in chunks:
        if chunk == "[DONE]":
            continue
        for choice in _no_error(chunk)["choices"]:
            text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
            ended = ended or choice["finish_reason"] == "stop"
    return text, ended and (not done or chunks[-1:] == ["[DONE]"])
