"""A minute of `make torture`: attacks, generated requests on every door, known streams, bad clients, and a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.torture.attacks.catalog import ATTACKS
from tests.torture.cases import DOORS
from tests.torture.pictures import with_sight
from tests.torture.record import Record
from tests.torture.report import page
from tests.torture.run import Options, Run
from tests.torture.server import Server
from tests.torture.sounds import add_hearing
from tests.torture.streams import WAYS

pytestmark = pytest.mark.triton


# What it waits for is bounded by itself, for machines that are a lot busier than most.
@pytest.mark.timeout(900)
def test_torture(repository: Path, tmp_path: Path) -> None:
    """Nothing is found: no 5xx, no wrong text, no stream without an end, nothing left behind."""
    # The seed is fixed: another one is for `make torture`, which says what it was.
    # A SIGTERM would have it start twice: the last stop is one, and test_lifecycle has one with streams.
    options = Options(seconds=5, seed=1, attack_seconds=0.5, faults="kill -9 preprocessing", every_fault=True)
    with lease_ports() as ports:
        with_senses = with_sight(repository, tmp_path)
        add_hearing(with_senses)
        run = Run(Server(with_senses, ports, tmp_path), options, Record(tmp_path / "findings"))
        run.run()
    report = page(run, options)
    assert run.record.findings == [], report
    assert [fought.name for fought in run.record.fought] == list(ATTACKS)
    assert run.missing_faults() == [], report
    assert run.record.statuses.keys() <= DOORS.keys()
    assert sum(run.record.streams[door]["exact"] for door in WAYS) > 0, report
