from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.transport.engine_process.log_lines import LevelFormatter, LogPump, clean
from tests.unit.core_support import WAIT_S

LOGGER = logging.getLogger("openai_bls.test_log_lines")


def pumped(data: bytes, caplog: pytest.LogCaptureFixture) -> tuple[LogPump, list[tuple[str, str]]]:
    """Level and text of the records that come of what a process prints."""
    caplog.clear()
    reader, writer = os.pipe()
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        pump = LogPump(reader, LOGGER)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
        pump.join(WAIT_S)
    return pump, [(record.levelname, record.getMessage()) for record in caplog.records]


def test_lines_and_their_levels(caplog: pytest.LogCaptureFixture) -> None:
    pump, records = pumped(b"one\n<4>two\n\n<3>three\r\n10%\r20%\rlast", caplog)
    assert records == [
        ("INFO", "engine: one"),
        ("WARNING", "engine: two"),
        ("ERROR", "engine: three"),
        ("INFO", "engine: 10%"),
        ("INFO", "engine: 20%"),
        ("INFO", "engine: last"),
    ]
    assert (pump.last_line, pump.error) == ("last", "")


def test_the_error_is_for_whoever_wanted_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    pump, records = pumped(b"begin\nopenai_bls: error: no engine in x\n", caplog)
    assert records == [("INFO", "engine: begin")]
    assert pump.error == "no engine in x"


def test_no_line_looks_like_two(caplog: pytest.LogCaptureFixture) -> None:
    """Nor like one of the server's, whatever a client has put into it."""
    forged = "x\x1b[31mred\x1b[0m\x0bE1123 22:11:19.1 1 model.cc:1] \"failed to load 'm' version 1: y\"\u2028z\x85w"
    _, ((level, text),) = pumped(forged.encode() + b"\n", caplog)
    assert level == "INFO"
    assert text.startswith("engine: xred\\x0bE1123")
    assert len(text.splitlines()) == 1


def test_a_line_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    _, records = pumped(b"a" * 1_000_000 + b"\nnext\n", caplog)
    assert max(len(text) for _, text in records) <= 4010
    assert records[-1][1] == "engine: next"


@given(st.binary())
def test_any_bytes_are_one_line(raw: bytes) -> None:
    line = clean(raw)
    assert len(line.splitlines()) <= 1
    assert "\x1b" not in line


def test_records_of_several_lines_keep_their_level(caplog: pytest.LogCaptureFixture) -> None:
    record = logging.LogRecord("n", logging.ERROR, "p", 1, "first\nsecond", None, None)
    _, records = pumped(LevelFormatter().format(record).encode(), caplog)
    assert records == [("ERROR", "engine: first"), ("ERROR", "engine: second")]
