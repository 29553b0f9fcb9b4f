"""Check of a server, its outcome, and a run over a list of checks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec
import openai

from openai_bls.launcher.smoke.session import CheckFailedError, NotCheckedError, Session

_BY_NAME = ("unsupported_endpoint", "unsupported_parameter")

Status = Literal["ok", "not supported", "not checked", "FAILED"]

# Refusals of what an engine does not do that have no code of their own.
_NOT_BY_THIS_ENGINE = re.compile(
    r"not supported by (the|this) engine|has no embeddings"
    r"|this server's engine (does not have|has no)|at most 0 are supported"
)


class Check(msgspec.Struct, frozen=True):
    """One request or a few that belong together, and what their answers must be."""

    name: str
    call: Callable[[Session], str | None]
    """Returns a few words on what was found, or None. Raises an error of `session` or of the openai package."""
    optional: bool = False
    """Engines differ in whether they do it, so a refusal by name is fine."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a check."""

    name: str
    status: Status
    detail: str
    milliseconds: int

    def line(self) -> str:
        """The outcome as one line of text."""
        return f"{self.name:<38} {self.status:<13} {self.milliseconds:>6} ms  {self.detail}".rstrip()


def run(checks: Iterable[Check], session: Session) -> Iterator[Outcome]:
    """Make the checks one after the other; none stops another."""
    for check in checks:
        begin = time.monotonic()
        status, detail = _make(check, session)
        yield Outcome(check.name, status, detail, round(1000 * (time.monotonic() - begin)))


def openai_error(body: str) -> dict[str, Any] | None:
    """The error in an OpenAI error body, also where Triton carries it as JSON text; None for anything else."""
    try:
        error = json.loads(body)["error"]
        if isinstance(error, str):
            error = json.loads(error)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    return error if isinstance(error, dict) else None


def _make(check: Check, session: Session) -> tuple[Status, str]:
    try:
        return "ok", check.call(session) or ""
    except NotCheckedError as error:
        return "not checked", str(error)
    except openai.APIStatusError as error:
        refusal = openai_error(error.response.text) or {}
        message = refusal.get("message") or " ".join(error.response.text.split())[:200]
        by_name = refusal.get("code") in _BY_NAME or _NOT_BY_THIS_ENGINE.search(message)
        if check.optional and error.status_code == 400 and by_name:
            return "not supported", message
        detail = f"HTTP {error.status_code}: {message}"
    except CheckFailedError as error:
        detail = str(error)
    except openai.APIConnectionError as error:
        detail = f"{error.request.url} does not answer: {error.__cause__ or error}"
    except openai.APIError as error:
        detail = f"an error within the stream: {error.message}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # An answer of another shape than the contract's.
        detail = f"the answer has an unexpected shape: {type(error).__name__}: {error}"
    return "FAILED", detail
