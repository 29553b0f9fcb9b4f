"""Guards: other models of this server that see each request before the engine does, and each answer after it.

A guard is called by BLS, once per request, with one JSON object. A guard that fails delays a request by at most
`guard_timeout_s`; `guard_on_failure` then decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np

from openai_bls.core.errors import ApiError, OverloadedError, RefusedByGuardError, TooLargeError
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.core.usage import Usage
from openai_bls.pipeline.guards.answers import GuardError, Hook, read_answer
from openai_bls.pipeline.joining import joined
from openai_bls.transport.model_calls import (
    ROOM_OF_INPUTS,
    InputTooLargeError,
    ModelCallError,
    ModelCalls,
    ModelTimeoutError,
)

logger = logging.getLogger(__name__)

INPUT = "request"
"""BYTES input of a guard, one element: the JSON object that it is asked with."""
OUTPUT = "response"
"""BYTES output of a guard, one element: the JSON object that it answers."""

GuardOutcome = Literal["passed", "changed", "refused", "timeout", "failed", "cancelled"]
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


async def _encoded(question: dict[str, Any]) -> bytes:
    """JSON text of a question, whose body, with images say, may be long."""
    rest = dict(question)
    body = rest.pop("request")
    return await joined((_encode(rest)[:-1], b',"request":', body, b"}"))


class CallObserver(Protocol):
    """Metrics of the guards' calls."""

    def guard_called(self, hook: Hook, outcome: GuardOutcome, seconds: float) -> None:
        """Count a call."""


class GuardedService(Protocol):
    """Service whose requests are guarded."""

    settings: OpenAiBlsSettings
    model_calls: ModelCalls

    @property
    def metrics(self) -> CallObserver:
        """Receiver of the counts."""

    def check_admission(self, key: str) -> None:
        """Refuse a request of an API key that is one too many."""

    def count(self, change: int, key: str = "") -> None:
        """Change the number of requests in progress of an API key."""

    def while_key_lasts(self, key: str) -> AbstractContextManager[None]:
        """A block that raises AuthenticationError once the key is taken out."""


class Guards:
    """Calls of the guards of one `openai_bls` instance. Belongs to the event loop's thread.

    A call counts as a request in progress: the server waits for it when it stops, and takes no more of them than of
    requests.

    Args:
        service: service whose requests are guarded; it has at least one guard.
    """

    def __init__(self, service: GuardedService) -> None:
        self._service = service
        settings = service.settings
        self._models: dict[Hook, str] = {"before": settings.guard_before, "after": settings.guard_after}
        self._timeout_s = settings.guard_timeout_s
        self._passes = settings.guard_on_failure == "pass"
        self._failing: set[Hook] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def has_after(self) -> bool:
        """True if answers are guarded."""
        return bool(self._models["after"])

    async def admit(self, endpoint: str, body: bytes, request_id: str, key: str) -> GuardedRequest:
        """A request that the guard, if there is one, lets through, with the body to go on with.

        Args:
            endpoint: name of the endpoint in the metrics.
            body: JSON text of an object.
            request_id: id of the request, from the client or made for it.
            key: name of the API key that it came with.

        Raises:
            RefusedByGuardError: the guard refuses the request.
            OverloadedError: the server takes no more, or the guard has failed.
        """
        request = GuardedRequest(self, endpoint, body, request_id, key)
        if self._models["before"]:
            self._service.check_admission(key)
            changed = await self.ask_for(key, "before", request.question("before"))
            if changed is not None:
                request.body = changed
        return request

    async def ask(self, hook: Hook, question: dict[str, Any]) -> bytes | None:
        """Replacement that the guard gives for what it is shown, as JSON text; None if it gives none.

        Raises:
            RefusedByGuardError: it refuses.
            OverloadedError: it has failed, and the policy is to refuse.
            TooLargeError: it cannot be shown so much.
        """
        outcome: GuardOutcome = "failed"
        began_at, key = time.monotonic(), question["key"] or ""
        self._service.count(1, key)
        try:
            changed, refusal = await self._call(hook, await _encoded(question), key)
            outcome = "refused" if refusal is not None else "passed" if changed is None else "changed"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except InputTooLargeError as error:
            # Whatever the policy: a client could go round the guard.
            what = "What a guard of this server is to see"
            raise TooLargeError(error.limit, ROOM_OF_INPUTS, what=what) from None
        except ModelTimeoutError:
            outcome = "timeout"
            self._give_up(hook, f"no answer within {self._timeout_s:g} s")
            return None
        except (ModelCallError, GuardError) as error:
            self._give_up(hook, str(error))
            return None
        finally:
            self._service.count(-1, key)
            self._service.metrics.guard_called(hook, outcome, time.monotonic() - began_at)
        if hook in self._failing:
            self._failing.discard(hook)
            logger.info("the guard %s (%s) answers again", self._models[hook], hook)
        if refusal is not None:
            raise refusal
        return changed

    async def ask_for(self, key: str, hook: Hook, question: dict[str, Any]) -> bytes | None:
        """`ask` for a request that waits for it, and ends with its key.

        Raises:
            AuthenticationError: the key was taken out.
            RefusedByGuardError: see `ask`.
            OverloadedError: see `ask`.
        """
        with self._service.while_key_lasts(key):
            return await self.ask(hook, question)

    def report(self, question: Callable[[], dict[str, Any]]) -> None:
        """Show the guard an answer that it cannot change any more; nobody waits for it, and no key's end ends it."""
        if self._closed:
            return

        async def tell() -> None:
            try:
                if await self.ask("after", question()) is not None:
                    logger.debug("a guard's change comes too late")
            except ApiError:
                # Refused too late, or failed, which is counted and logged.
                pass
            except Exception:
                logger.exception("an answer could not be shown to the guard %s", self._models["after"])

        task = asyncio.get_running_loop().create_task(tell())
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    def close(self) -> None:
        """Give up the calls that nobody waits for, and make no more of them."""
        self._closed = True
        for task in self._reports:
            task.cancel()

    async def _call(self, hook: Hook, question: bytes, key: str) -> tuple[bytes | None, RefusedByGuardError | None]:
        """The guard's change or its refusal, or neither."""
        inputs = {INPUT: np.array([question], dtype=np.object_)}
        arrays = await self._service.model_calls.call(
            self._models[hook], inputs, (OUTPUT,), timeout_s=self._timeout_s, key=key
        )
        return read_answer(hook, arrays[OUTPUT].reshape(-1).tolist() if OUTPUT in arrays else [])

    def _give_up(self, hook: Hook, why: str) -> None:
        """Follow the policy for a guard that has failed; log the first of several failures."""
        if hook not in self._failing:
            self._failing.add(hook)
            fate = "go on without it" if self._passes else "are refused"
            logger.error("the guard %s (%s) fails, requests %s: %s", self._models[hook], hook, fate, why)
        if not self._passes:
            raise OverloadedError(
                "A guard of this server does not work at the moment; try again later.", code="guard_unavailable"
            )


class GuardedRequest:
    """One request and its guards, from its body to its answer or its end.

    Args:
        guards: guards of the server.
        endpoint: name of the endpoint in the metrics.
        body: JSON text.
        request_id: id of the request, from the client or made for it.
        key: name of the API key that it came with.
    """

    def __init__(self, guards: Guards, endpoint: str, body: bytes, request_id: str, key: str) -> None:
        self.body = body
        """JSON text of the body to go on with."""
        self.began_at = time.monotonic()
        """Time at which the request arrived, before any guard has seen it."""
        self._guards = guards
        self._endpoint = endpoint
        self._request_id = request_id
        self._key = key
        self._record: RequestRecord | None = None
        self._make_answer: Callable[[Usage], Any] | None = None
        self._shown = False

    def question(self, hook: Hook) -> dict[str, Any]:
        """Question to a guard, as far as it is of the request itself; the body is JSON text."""
        return {
            "hook": hook,
            "endpoint": self._endpoint,
            "request_id": self._request_id,
            "key": self._key or None,
            "request": self.body,
        }

    @property
    def wants_answers(self) -> bool:
        """True if a streamed answer is to be kept for the guard."""
        return self._guards.has_after

    def streams(self, make_answer: Callable[[Usage], Any]) -> None:
        """The answer is streamed; `make_answer` has it as a whole at the end."""
        self._make_answer = make_answer

    def ended(self, record: RequestRecord) -> None:
        """Called when the admitted request has ended. Only a whole answer is still to come, and goes to `whole`."""
        self._record = record
        if self._make_answer is not None or record.outcome != "done":
            self._report()

    async def whole(self, work: Awaitable[T]) -> T | bytes:
        """The whole answer to the request as the guard leaves it.

        Args:
            work: the answer as JSON text; anything else, such as a generation that streams, is returned as it is.

        Raises:
            RefusedByGuardError: the guard refuses the answer.
            OverloadedError: the guard has failed.
        """
        try:
            answer = await work
            if isinstance(answer, bytes) and self._guards.has_after:
                self._shown = True
                changed = await self._guards.ask_for(self._key, "after", self._answered(msgspec.Raw(answer)))
                return answer if changed is None else changed
            return answer
        finally:
            if self._record is not None and self._make_answer is None:
                # Its client went away just when the answer was there.
                self._report()

    def _report(self) -> None:
        if not self._shown and self._guards.has_after:
            self._shown = True
            self._guards.report(self._ended)

    def _ended(self) -> dict[str, Any]:
        record = self._record
        assert record is not None
        whole = None
        if record.outcome == "done" and self._make_answer is not None:
            whole = self._make_answer(record.usage)
        return self._answered(whole)

    def _answered(self, answer: Any) -> dict[str, Any]:
        """Question to a guard about an answer."""
        record = self._record
        outcome = "done" if record is None else record.outcome
        failure = outcome if isinstance(outcome, ApiError) else None
        return {
            **self.question("after"),
            "stream": self._make_answer is not None,
            "outcome": outcome if failure is None else "failed",
            "error": None if failure is None else failure.body()["error"],
            "answer": answer,
            "model": None if record is None else record.model,
            "usage": None if record is None else record.usage,
        }
