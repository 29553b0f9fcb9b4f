"""Verdicts: what is wrong with an answer, if anything is."""

from __future__ import annotations

import json
import re
from typing import Any

from openai_bls.api.registry import ENDPOINTS
from openai_bls.api.triton_paths.endpoints import PASSED_ON
from tests.torture.attacks.judgement import MOST_LOOP_S
from tests.torture.cases import Case
from tests.torture.doors import Answer

# What a message to a client must not have: tracebacks, places in source code, folders of the server.
_LEAKS = re.compile(
    r"Traceback \(most recent|File \"[^\"]*\", line \d|\.py:\d+|/site-packages/|/model_repository/|/usr/lib/|/dev/shm/|"
    r"/tmp/|/root/|/home/|object at 0x[0-9a-f]{6}"
)
# Triton's HTTP front end answers JSON that it cannot read by itself, with 500. No model has seen it.
_TRITONS_OWN = re.compile(
    r'\{"error":"(?:failed to parse the request JSON|Unable to parse|attempt to (?:access|get)|parameter key|[^"]*JSON)'
)
_UNAVAILABLE = ("503", "529", "UNAVAILABLE", "no connection", "broken off")
# Said to a request that gave itself little time. No other limit is set here that a request could meet.
_TOO_LATE = re.compile(r"timeout of [\d.e+-]+ s(?: has passed|\. Try again)")
_HELD = "hold some of the prefix cache"
"""Said, as documented, to a reset while sequences run."""
_BODILESS = frozenset(path for endpoint in ENDPOINTS if endpoint.operation.answer is None for path in endpoint.paths)
_LISTS = frozenset(("/v1/completions/render", "/v2/repository/index"))
"""Paths whose answers are arrays."""
_OF_TRITON = re.compile("/v2/models/(?:" + "|".join(PASSED_ON) + ")/|/v2/repository/index")
"""Paths whose errors may be Triton's own, a sentence each."""
_WRONG_GRPC = ("INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "UNAVAILABLE")
# gRPC's streams have messages without codes: of Python's exceptions these are what a model did not expect.
_UNEXPECTED = re.compile(r"\b(?:Type|Value|Key|Index|Attribute|Assertion|Unicode\w*|Recursion|Memory|Runtime)Error\b")

_STALL = re.compile(
    r"the event loop stood for (?P<stall>[\d.]+) s \((?P<cpu>[\d.]+) s of CPU time\) .*: (?P<endpoints>.*)"
)


def stalls(log: str) -> list[str]:
    """Endpoints whose work has held up the event loop for longer than any attack may, by its log.

    A stall of a machine that had no CPU is none.
    """
    long = [found for found in _STALL.finditer(log) if float(found["stall"]) > MOST_LOOP_S]
    return [found["endpoints"] for found in long if float(found["cpu"]) >= float(found["stall"]) / 2]


def status_of(case: Case, answer: Answer) -> str:
    """Status as the report has it."""
    if case.port == "http" and answer.status == "500" and _TRITONS_OWN.match(answer.text):
        return "500 of Triton itself"
    return answer.status


def fault_of(case: Case, answer: Answer, *, disturbed: bool) -> str | None:
    """What is wrong, as the head of a finding; None if nothing is.

    Args:
        case: was asked.
        answer: came.
        disturbed: something was broken on purpose while it was.
    """
    status, text = status_of(case, answer), answer.text
    wrong: str | None = None
    if status == "late":
        wrong = None if disturbed else "no answer"
    elif leak := _first_leak(text, case):
        wrong = f"leaks {leak!r}"
    elif _TOO_LATE.search(text) and _has_timeout(case):
        wrong = _malformed(case, status, text) if case.port == "openai" else None
    elif status == "503" and _HELD in text:
        wrong = _malformed(case, status, text)
    elif status in _UNAVAILABLE:
        wrong = None if disturbed else f"{status} with nothing broken"
    elif case.port == "openai":
        wrong = status if status.startswith("5") else _malformed(case, status, text)
    elif not disturbed:
        failed = status in _WRONG_GRPC or (status.isdigit() and int(status) >= 500)
        wrong = status if failed else _unexpected(text, case)
    return wrong


def _has_timeout(case: Case) -> bool:
    return b"timeout" in case.body or any(name == "x-request-timeout" for name, _ in case.headers)


def _first_leak(text: str, case: Case) -> str | None:
    # An answer may say again what was asked.
    asked = case.path + case.body.decode("utf-8", "replace")
    return next((found[0] for found in _LEAKS.finditer(text) if found[0] not in asked), None)


def _unexpected(text: str, case: Case) -> str | None:
    found = _UNEXPECTED.search(text)
    return None if found is None or found[0] in case.body.decode("utf-8", "replace") else f"an exception: {found[0]}"


def _malformed(case: Case, status: str, text: str) -> str | None:
    """A body of /v1 that is not what its status says."""
    if text.startswith(("data: ", "event: ", ":")):
        return _broken_stream(case, text)
    if not text:
        bodiless = status.startswith("3") or (status == "200" and case.path in _BODILESS)
        return None if bodiless else f"{status} without a body"
    try:
        body = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return f"{status} with what is not JSON"
    if status.startswith("2"):
        return None if isinstance(body, dict) or case.path in _LISTS else f"{status} with no object"
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, str) and _OF_TRITON.match(case.path):
        error = {"message": error}
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        return f"{status} without an error's message"
    return None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _broken_stream(case: Case, text: str) -> str | None:
    """A stream that does not end as its API says, or has events that are not JSON; Triton's ends without a word."""
    last = ""
    for event in text.split("\n\n"):
        data = "".join(line[6:] for line in event.split("\n") if line.startswith("data: "))
        if data and data != "[DONE]":
            try:
                json.loads(data, parse_constant=_refuse)
            except ValueError:
                return "an event that is not JSON"
        last = data or last
    if _OF_TRITON.match(case.path):
        return None
    if case.path.startswith(("/v1/messages", "/v1/responses")):
        ends = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")
        return None if json.loads(last).get("type") in ends else "a stream without an end"
    return None if last == "[DONE]" else "a stream without an end"
