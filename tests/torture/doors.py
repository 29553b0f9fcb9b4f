"""Client of all doors: one case in, one answer out, whatever happens in between."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.keys import OWN, authorization
from tests.torture.cases import Case

HOST = "127.0.0.1"
PATIENCE_SECONDS = 180.0
"""Far beyond what an answer takes on a busy machine, or a start of the server, for which /v1 lets requests wait."""
GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    # Until its next attempt a channel fails every call, up to two minutes after the server is there again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class Answer:
    """The answer to a case."""

    status: str
    """HTTP status, gRPC status in words, `late`, or `no connection` and `broken off`."""
    text: str
    begun: float
    ended: float


@dataclass
class Pending:
    """A request on its way, which another thread may give up."""

    port: str
    """`openai`, `http` or `grpc`."""
    begun: float = field(default_factory=time.monotonic)
    give_up: Callable[[], object] = lambda: None
    given_up: bool = False


def closer(connection: socket.socket) -> Callable[[], None]:
    """What ends a connection under another thread's hands."""

    def close() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    return close


class Doors:
    """Connections of one thread.

    Args:
        ports: of the server.
    """

    def __init__(self, ports: Ports) -> None:
        self.pending: Pending | None = None
        self._ports = ports
        self._v1: http.client.HTTPConnection | None = None
        self._channel = grpc.insecure_channel(f"{HOST}:{ports.grpc}", GRPC_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Close all connections."""
        self._close_v1()
        self._channel.close()

    def ask(self, case: Case) -> Answer:
        """Send a case and wait for its answer."""
        self.pending = pending = Pending(case.port)
        status, text = self._grpc(case) if case.port == "grpc" else self._http(case)
        self.pending = None
        return Answer(status, text, pending.begun, time.monotonic())

    def _close_v1(self) -> None:
        if self._v1 is not None:
            self._v1.close()
        self._v1 = None

    def _http(self, case: Case) -> tuple[str, str]:
        # An idle connection to Triton's port would hold up its end.
        kept = case.port == "openai"
        reused = kept and self._v1 is not None
        connection = self._v1 if kept else None
        if connection is None:
            connection = http.client.HTTPConnection(HOST, getattr(self._ports, case.port), timeout=PATIENCE_SECONDS)
        self._v1 = connection if kept else self._v1
        headers = {"authorization": authorization(OWN), **dict(case.headers)}
        headers |= {} if kept else {"connection": "close"}
        connected = reused
        try:
            if not connected:
                connection.connect()
                connected = True
            if self.pending is not None:
                self.pending.give_up = closer(connection.sock)
            connection.request(case.method, case.path, case.body or None, headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except TimeoutError:
            self._close_v1()
            return "late", ""
        except (http.client.HTTPException, OSError) as error:
            self._close_v1()
            if reused and not (self.pending is not None and self.pending.given_up):
                # The server closes silent connections.
                return self._http(case)
            return "broken off" if connected else "no connection", repr(error)
        if not kept or response.will_close:
            connection.close()
            self._v1 = None if kept else self._v1
        return str(response.status), text

    def _grpc(self, case: Case) -> tuple[str, str]:
        request = service_pb2.ModelInferRequest.FromString(case.body)
        texts = []
        try:
            if case.path == "ModelInfer":
                call = self._stub.ModelInfer.future(request, timeout=PATIENCE_SECONDS)
                self._may_give_up(call.cancel)
                texts.append(str(call.result()))
            else:
                texts += self._streamed(request)
        except grpc.FutureCancelledError:
            return "CANCELLED", ""
        except grpc.RpcError as error:
            code: Any = error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "late", ""
            return str(code.name), "".join(texts) + str(error.details())
        return "OK", "".join(texts)

    def _streamed(self, request: Any) -> list[str]:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        texts = []
        call = self._stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_SECONDS)
        self._may_give_up(call.cancel)
        for response in call:
            # Where a request fails before it runs, that is all there is.
            texts.append(response.error_message or str(response.infer_response))
        return texts

    def _may_give_up(self, how: Callable[[], object]) -> None:
        if self.pending is not None:
            self.pending.give_up = how
