"""The request log: its fields, what clients may put into them, and readers that stand still."""

from __future__ import annotations

import fcntl
import json
import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.launcher.logs import LoadWatcher, is_request, worth_showing
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.observation import request_log
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.observation.request_log import RequestLog, as_json, as_text, fields_of
from tests.unit.core_support import chat
from tests.unit.pipeline.metrics.metrics_support import record

WORDS = re.compile(r'(?:[^ "]|"(?:[^"\\]|\\.)*")+')


def observed(path: str = "/v1/chat/completions", **facts: Any) -> RequestContext:
    """A request that ended two seconds after its arrival."""
    found = Observer().begin("POST", path)
    if "request" in facts:
        found.asks(facts.pop("request"))
    for name, value in facts.items():
        setattr(found, name, value)
    found.released()
    found.ended_at = found.began_at + 2
    return found


def answered() -> RequestContext:
    found = observed(request_id="req_1", request=chat(stream=True), key="alice", http_status=200)
    found.opened().recorded(record(first_token_at=found.began_at + 0.5, queue_s=0.25, submitted_at=found.began_at))
    found.records.append(
        record(first_token_at=found.began_at + 0.5, queue_s=0.25, key="alice", finish_reasons=["stop", "length"])
    )
    found.model, found.endpoint = "tiny", "chat.completions"
    return found


def test_a_request_that_was_answered() -> None:
    fields = fields_of(answered(), "abc")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields.pop("time"))
    assert fields == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "request_id": "req_1",
        "endpoint": "chat.completions",
        "model": "tiny",
        "stream": True,
        "key": "alice",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "generated_tokens": 5,
        "reasoning_tokens": 2,
        "queue_s": 0.25,
        "time_to_first_token_s": 0.5,
        "total_s": 2.0,
        "finish_reason": "stop,length",
        "trace_id": "abc",
    }


def test_a_request_that_was_refused() -> None:
    error = InvalidRequestError("no", param="tools[0].function.name", code="unknown_parameter")
    fields = fields_of(observed(error=error, http_status=400))
    assert (fields["status"], fields["error"], fields["param"]) == (400, "unknown_parameter", "tools[0].function.name")
    assert not {"model", "queue_s", "prompt_tokens", "finish_reason", "trace_id", "key"} & fields.keys()


def test_a_field_that_looks_like_a_prompt_is_left_out() -> None:
    fields = fields_of(observed(error=InvalidRequestError("no", param="Tell me a secret")))
    assert "param" not in fields
    assert "secret" not in as_json(fields)


@given(st.text(max_size=300), st.text(max_size=300))
def test_nobody_makes_up_a_line(request_id: str, model: str) -> None:
    fields = fields_of(observed(path="/v1/" + model, request_id=request_id, model=model))
    text, encoded = as_text(dict(fields)), as_json(fields)
    assert text.isascii()
    assert text.isprintable()
    assert encoded.isascii()
    assert encoded.isprintable()
    assert len(encoded) < 4096
    assert json.loads(encoded) == fields
    names = [word.partition("=")[0] for word in WORDS.findall(text)[4:]]
    assert names == [name for name in fields if name not in ("time", "method", "path", "status")]
    for line in (text, encoded):
        assert is_request(line)


@pytest.mark.parametrize(
    "trick",
    ["Too many open files", "Signal (2) received", "failed to load 'x' version 1: no"],
)
def test_the_launcher_takes_nothing_from_it(trick: str) -> None:
    for write in (as_text, as_json):
        line = write(fields_of(observed(model=trick)))
        watcher = LoadWatcher()
        assert watcher.feed(line) is None
        assert watcher.reason() is None
        assert worth_showing(line)


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_are_written(form: str) -> None:
    reader, writer = os.pipe()
    log = RequestLog(form, writer)
    for _ in range(3):
        log.ended(answered(), "abc")
    log.close()
    os.close(writer)
    with os.fdopen(reader) as written:
        lines = written.read().splitlines()
    assert len(lines) == 3
    assert all(is_request(line) and "req_1" in line for line in lines)


def test_a_reader_that_stands_still_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_WAITING_LINES", 500)
    monkeypatch.setattr(request_log, "_CLOSE_S", 0.05)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    log = RequestLog("json", writer)
    for _ in range(2000):
        log.ended(answered())
    # Returns although nobody reads.
    log.close()
    with os.fdopen(reader) as written:
        read = [written.readline() for _ in range(400)]
        assert all(is_request(line) for line in read)
        for line in written:
            if not is_request(line):
                break
    assert re.fullmatch(r"openai_bls: \d+ lines of the request log were dropped: nobody read them\n", line)
    log._thread.join()
    os.close(writer)


def test_a_closed_output_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = RequestLog("text", writer)
    log.ended(answered())
    log.close()
    assert not log._thread.is_alive()
    os.close(writer)
