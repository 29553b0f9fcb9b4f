"""Frontend of `tensorrt_llm` for official tensors: its open requests, their stops and their cancellation."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.triton_models.endpoint.request_keys import STOP_WITHOUT_ID
from openai_bls.triton_models.tensorrt_llm import requests, responses

if TYPE_CHECKING:
    from openai_bls.triton_models.endpoint.response_sender import Reply
    from openai_bls.triton_models.tensorrt_llm.responses import Outputs

# Seconds between two checks of every open stream for cancellation; a check costs about 30 µs.
_CANCELLATION_INTERVAL_S = 0.15


class _Open(NamedTuple):
    """One Triton request that has not been answered in full."""

    triton_id: str
    responder: responses.Responder
    stream: Reply[Outputs]


class Frontend:
    """Takes requests with official tensors, from any thread."""

    def __init__(
        self, exchange: ExchangeServer, info: EngineInfo, settings: EngineSettings, *, decoupled: bool = True
    ) -> None:
        self._decoupled = decoupled
        self._exchange = exchange
        self._info = info
        self._settings = settings
        self._open: list[_Open] = []
        self._changed = threading.Condition()
        self._closed = False
        self._watcher = threading.Thread(target=self._watch, name="cancellation", daemon=True)
        self._watcher.start()

    def open(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        triton_id: str,
        stream: Reply[Outputs],
        outputs: frozenset[str] = frozenset(),
    ) -> None:
        """Take one request; its responses go to `stream`.

        Args:
            arrays: the input tensors by name.
            triton_id: the request's id.
            stream: takes the responses.
            outputs: names of the outputs to send: all where the client names none.

        Raises:
            InvalidRequestError: it cannot be honoured; nothing has been sent.
        """
        if requests.is_stop(arrays):
            if not triton_id:
                raise InvalidRequestError(STOP_WITHOUT_ID)
            # First, as officially: clients up to 0.10 take what comes last for the answer.
            stream.close()
            self._stop(triton_id)
            return
        request = requests.parse(arrays, self._info, self._settings.exclude_input_in_output, outputs=outputs)
        if not self._decoupled:
            requests.require_one_response(request)

        def fail(error: ApiError) -> None:
            stream.fail(error)
            self._cancel(responder)

        responder = responses.Responder(request, lambda arrays, final: stream.send(arrays, final=final), fail)
        with self._changed:
            self._open = [entry for entry in self._open if not entry.responder.ended]
            self._open.append(_Open(triton_id, responder, stream))
            self._changed.notify()
        for sequence in responder.sequences():
            if responder.ended:
                break
            responder.request_ids.append(self._exchange.submit_local(sequence.request, sequence))
        # Failed or stopped meanwhile: the last of these ids was not known yet.
        if responder.ended:
            self._cancel(responder)

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._watcher.join()

    def _stop(self, triton_id: str) -> None:
        """End the live requests of this id; one that is not live is no error."""
        with self._changed:
            stopped = [entry for entry in self._open if entry.triton_id == triton_id]
        for entry in stopped:
            entry.responder.stop()
            self._give_up(entry)

    def _give_up(self, entry: _Open) -> None:
        entry.responder.close()
        entry.stream.close()
        self._cancel(entry.responder)

    def _cancel(self, responder: responses.Responder) -> None:
        """Stop the engine's work; harmless for sequences that have ended."""
        for request_id in list(responder.request_ids):
            self._exchange.cancel_local(request_id)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._open = [entry for entry in self._open if not entry.responder.ended]
                # Sleeps for good while nothing is open, but not after a close that came before the wait.
                if not self._closed:
                    self._changed.wait(_CANCELLATION_INTERVAL_S if self._open else None)
                if self._closed:
                    return
                entries = list(self._open)
            for entry in entries:
                if not entry.responder.ended and entry.stream.is_cancelled():
                    self._give_up(entry)
