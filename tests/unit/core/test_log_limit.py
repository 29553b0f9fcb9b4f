from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.log_limit import INTERVAL_S, LimitedWarnings


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@given(st.lists(st.floats(0, 2 * INTERVAL_S), min_size=1, max_size=50))
def test_lines_are_bounded_by_time_and_the_rest_is_counted(pauses: list[float]) -> None:
    logger, lines, now = logging.Logger("test"), Lines(), [0.0]
    logger.addHandler(lines)
    warnings = LimitedWarnings(logger, lambda: now[0])
    for pause in pauses:
        now[0] += pause
        warnings.write("%s came", "somebody")
    assert 1 <= len(lines.lines) <= 1 + now[0] / INTERVAL_S
    now[0] += INTERVAL_S
    warnings.write("%s came", "somebody")
    counted = sum(int(line.split("(and ")[1].split()[0]) for line in lines.lines if "(and " in line)
    assert len(lines.lines) + counted == len(pauses) + 1


def test_a_line_goes_to_its_logger(caplog: pytest.LogCaptureFixture) -> None:
    LimitedWarnings(logging.getLogger("openai_bls.test")).write("%d%%", 5)
    assert caplog.messages == ["5%"]
