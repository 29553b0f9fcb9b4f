"""Clients that leave, at every door of every model, as the table of docs/guides/triton.md says what becomes of their
requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import numpy as np
import openai
import tritonclient.grpc as grpcclient

from openai_bls.launcher.testing import RunningServer
from tests.triton import triton_client
from tests.triton.conversations import HELLO
from tests.triton.metrics import find, scrape
from tests.unit.docs.pages import code, rows_of
from tests.waiting import until

ENDLESS, SHORT = 2000, 50
"""Tokens of a request that is cancelled, of 20 ms each, and of one that is not."""
STOPPED = "`stop`"
DOORS = ("`/v1`", "gRPC", "`generate_stream`", "`generate`", STOPPED)
NEVER, NO_DOOR = "never", "—"


class Cell(NamedTuple):
    """What the table says of a model at a door."""

    model: str
    door: str
    verdict: str


def cells() -> Iterator[Cell]:
    """The cells of the table."""
    found = rows_of("docs/guides/triton.md", "Clients that leave")
    assert found
    for row in found:
        assert row.header[1:] == DOORS
        (model,) = code(row.cells[0])
        for door, verdict in zip(DOORS, row.cells[1:], strict=True):
            assert verdict in ("at once", "after its first response", NEVER, NO_DOOR), verdict
            yield Cell(model, door, verdict)


def body(model: str, tokens: int, *, stream: bool) -> dict[str, Any]:
    """A request of that many tokens, as `generate` takes it."""
    if model == "openai_bls":
        return {"messages": json.dumps(HELLO), "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    if model == "tensorrt_llm":
        return {"input_ids": [1, 2], "request_output_len": tokens, "end_id": -1, "streaming": stream}
    return {"text_input": "Hello", "max_tokens": tokens, "end_id": -1, "stream": stream}


def tensors(model: str, tokens: int, *, stream: bool) -> tuple[list[grpcclient.InferInput], dict[str, Any]]:
    """The same over gRPC: tensors, and parameters."""
    fields = body(model, tokens, stream=stream)
    if model == "openai_bls":
        messages = triton_client.infer_input("messages", [fields.pop("messages")], "BYTES")
        return [messages], fields
    inputs = []
    for name, value in fields.items():
        if isinstance(value, str):
            inputs.append(triton_client.infer_input(name, np.array([[value.encode()]], np.object_), "BYTES"))
        elif isinstance(value, bool):
            inputs.append(triton_client.infer_input(name, np.array([[value]]), "BOOL"))
        else:
            array = np.array(value, np.int32).reshape(1, -1)
            inputs.append(triton_client.infer_input(name, array, "INT32"))
    return inputs, {}


class Leaver:
    """Client that leaves in the middle of its answer.

    Args:
        server: server with a slow engine that runs one sequence at a time.
        client: client for the requests between.
    """

    def __init__(self, server: RunningServer, client: openai.OpenAI) -> None:
        self._server = server
        self._client = client

    def check(self, cell: Cell) -> None:
        """What the cell says is so: the engine is free at once, or makes every token that nobody reads."""
        tokens = SHORT if cell.verdict == NEVER else ENDLESS
        before = self._generated()
        if cell.door == STOPPED:
            self._stop(cell, tokens)
        else:
            leave: dict[str, Callable[[Cell, int], None]] = {
                "`/v1`": self._leave_v1, "gRPC": self._leave_grpc, "`generate_stream`": self._leave_stream,
                "`generate`": self._leave_generate,
            }  # fmt: skip
            leave[cell.door](cell, tokens)
        # 2,000 tokens would take 40 seconds: this comes only after the first has been cancelled.
        answer = self._client.chat.completions.create(model="openai_bls", messages=HELLO, max_tokens=2)
        assert answer.choices[0].finish_reason == "length", cell
        if cell.verdict == NEVER:
            until(lambda: self._generated() >= before + tokens)

    def _generated(self) -> float:
        return find(scrape(self._server), "engine_generated_tokens_total")

    def _leave_v1(self, cell: Cell, tokens: int) -> None:
        fields = {"messages": HELLO, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{self._server.openai_url}/chat/completions", json=fields, timeout=60) as response:
            next(response.iter_bytes())

    def _leave_grpc(self, cell: Cell, tokens: int) -> None:
        """Before the first response, too, and where the answer is not streamed."""
        for stream in (True, False):
            inputs, parameters = tensors(cell.model, tokens, stream=stream)
            with triton_client.GrpcStream(self._server.grpc_url) as leaving:
                leaving.send(cell.model, inputs, parameters)
                if stream:
                    next(leaving.responses())
                else:
                    self._wait_until_it_runs()

    def _leave_stream(self, cell: Cell, tokens: int) -> None:
        url = f"{self._server.http_url}/v2/models/{cell.model}/generate_stream"
        with httpx.stream("POST", url, json=body(cell.model, tokens, stream=True), timeout=60) as response:
            next(response.iter_bytes())

    def _leave_generate(self, cell: Cell, tokens: int) -> None:
        content = json.dumps(body(cell.model, tokens, stream=False)).encode()
        with socket.create_connection(("127.0.0.1", self._server.ports.http)) as connection:
            head = f"POST /v2/models/{cell.model}/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            self._wait_until_it_runs()

    def _wait_until_it_runs(self) -> None:
        until(lambda: find(scrape(self._server), "engine_sequences_running") > 0)

    def _stop(self, cell: Cell, tokens: int) -> None:
        """Another request with the same id ends the first one, or is refused."""
        url = f"{self._server.http_url}/v2/models/{cell.model}/generate_stream"
        fields = {**body(cell.model, tokens, stream=True), "id": "42"}
        with httpx.stream("POST", url, json=fields, timeout=60) as response:
            pieces = response.iter_bytes()
            next(pieces)
            again = {**body(cell.model, 1, stream=False), "id": "42", "stop": True}
            answer = httpx.post(url, json=again, timeout=60)
            assert (answer.status_code != 200) == (cell.verdict == NEVER), (cell, answer.text)
            if cell.verdict == NEVER:
                list(pieces)


def check_all(server: RunningServer) -> None:
    """Check every cell of the table."""
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0, timeout=20) as client:
        leaver = Leaver(server, client)
        for cell in cells():
            if cell.verdict != NO_DOOR:
                leaver.check(cell)
