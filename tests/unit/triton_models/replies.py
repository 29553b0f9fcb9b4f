"""Reply of tensors that keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from openai_bls.core.errors import ApiError
from tests.unit.core_support import WAIT_S


class TensorReply:
    """Response stream of a request, see `pb_utils.ResponseStream`."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.error: ApiError | None = None
        self.finals = 0
        self.gone = False
        self.changed = threading.Condition()

    def send(self, body: Mapping[str, Any], *, final: bool = False) -> None:
        assert not self.finals
        with self.changed:
            self.sent.append(body)
        self._end(final)

    def fail(self, error: ApiError, *, after_output: bool = False) -> None:
        self.error = error
        self._end(True)

    def close(self) -> None:
        self._end(not self.finals)

    def is_cancelled(self) -> bool:
        return self.gone

    def _end(self, final: bool) -> None:
        with self.changed:
            self.finals += final
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def wait_end(self) -> None:
        self.wait_for(lambda: self.finals)

    def texts(self, index: int = 0) -> list[str]:
        """The pieces of one sequence."""
        return [sent["text_output"][0].decode() for sent in self.sent if sent["sequence_index"].item() == index]

    def token_ids(self) -> list[list[int]]:
        """Of each response."""
        return [sent["output_ids"].reshape(-1).tolist() for sent in self.sent]
