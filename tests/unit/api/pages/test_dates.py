"""Groups of the conversation list by date, by the page's own module in Node, against Python's calendar."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.pages.static_files import FOLDER
from tests.tools import tool

SCRIPT = """
import { readFileSync } from "node:fs";
const { groupOf } = await import(process.argv[1]);
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(([then, now]) => groupOf(then, now))));
"""
MODULE = (FOLDER / "playground" / "conversations" / "dates.js").as_uri()


def groups(zone: str, times: list[tuple[datetime, datetime]]) -> list[str]:
    asked = json.dumps([[round(time.timestamp() * 1000) for time in pair] for pair in times])
    command = [tool("node"), "--input-type=module", "-e", SCRIPT, MODULE]
    said = subprocess.run(command, input=asked, env={"TZ": zone}, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(said.stdout)
    return found


def expected(then: datetime, now: datetime) -> str:
    days = (now.date() - then.date()).days
    bounds = ((0, "Today"), (1, "Yesterday"), (7, "Previous 7 days"), (30, "Previous 30 days"))
    return next((name for bound, name in bounds if days <= bound), then.strftime("%B %Y"))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Auckland", "America/Los_Angeles"])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_groups(zone: str, data: st.DataObject) -> None:
    """By days of the calendar, which changes of the clock make longer and shorter."""
    moment = st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1))
    hours = st.one_of(st.integers(0, 24 * 40), st.integers(0, 24 * 400), st.integers(-2, 50))
    drawn = data.draw(st.lists(st.tuples(moment, hours), min_size=20, max_size=60))
    times = []
    for now, ago in drawn:
        here = now.replace(microsecond=0, tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(zone))
        then = (here.astimezone(ZoneInfo("UTC")) - timedelta(hours=ago)).astimezone(ZoneInfo(zone))
        times.append((then, here))
    assert groups(zone, times) == [expected(then, now) for then, now in times]
