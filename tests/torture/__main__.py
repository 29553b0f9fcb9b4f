"""Command line of the torture."""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import signal
import sys
import tempfile
from pathlib import Path

from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.torture.cases import replayed
from tests.torture.doors import Doors
from tests.torture.pictures import image_host, with_sight
from tests.torture.record import Record
from tests.torture.report import page
from tests.torture.run import Options, Run
from tests.torture.server import Server
from tests.torture.sounds import add_hearing

ROOT = Path(__file__).parents[2]
_SECONDS = 600.0
_SOAK_SECONDS = 1800.0
_ATTACKS_PART = 60.0
"""Share of the time that each attack has."""
_LEGS = 6
"""Parts of a soak, after each of which nobody asks for a while."""


def main() -> int:
    """Run it; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, help="of cases and faults (600, and until every fault has come up once)"
    )
    parser.add_argument("--cases", type=int, default=0, help="go on until there were so many, too")
    parser.add_argument("--seed", type=int, default=None, help="of a run that is to be repeated")
    parser.add_argument("--without-faults", action="store_true", help="break nothing")
    parser.add_argument(
        "--soak",
        action="store_true",
        help="break nothing, for half an hour; six times nobody asks for a moment, in which the memory, threads and "
        "open files of each process are counted",
    )
    parser.add_argument("--without-attacks", action="store_true", help="leave the quiet key alone")
    parser.add_argument("--attacks", default="", help="those whose names have these words, such as 'grammars'")
    parser.add_argument("--faults", default="", help="those whose names have these words, such as 'kill -9'")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository", help="with the demo engine")
    parser.add_argument("--report", type=Path, default=Path("torture.md"), help="file of the report (torture.md)")
    parser.add_argument("--findings", type=Path, default=Path("torture-findings"), help="folder for what was wrong")
    parser.add_argument("--replay", type=Path, help="send the case of a finding once more, and print the answer")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(31)
    seconds = arguments.seconds if arguments.seconds is not None else _SOAK_SECONDS if arguments.soak else _SECONDS
    options = Options(
        seconds,
        arguments.cases,
        seed,
        with_faults=not (arguments.without_faults or arguments.soak),
        faults=arguments.faults,
        every_fault=arguments.seconds is None,
        attack_seconds=0.0 if arguments.without_attacks or arguments.soak else seconds / _ATTACKS_PART,
        attacks=arguments.attacks,
        leg_seconds=seconds / _LEGS if arguments.soak else math.inf,
    )
    # gRPC and asyncio have words of their own for connections that are cut.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="openai_bls-torture-") as folder, lease_ports() as ports:
        repository = with_sight(arguments.repository.absolute(), Path(folder))
        add_hearing(repository)
        server = Server(repository, ports, Path(folder))
        if arguments.replay is not None:
            return _replay(server, arguments.replay)
        print(f"seed {seed}; the console of the server: {server.console_path}", flush=True)
        run = Run(server, options, Record(arguments.findings), lambda line: print(line, flush=True))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: run.interrupt())
        run.run()
    report = page(run, options)
    arguments.report.write_text(report)
    print(report)
    return 1 if run.record.findings else 0


def _replay(server: Server, finding: Path) -> int:
    case = replayed(json.loads(finding.read_text())["case"])
    with image_host():
        try:
            server.start()
            doors = Doors(server.ports)
            answer = doors.ask(case)
            doors.close()
        finally:
            server.kill()
    print(case.door, case.path, case.body, answer.status, answer.text, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
