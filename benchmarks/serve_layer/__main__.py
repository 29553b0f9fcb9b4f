"""Comparison of serving layers, side by side: `python -m benchmarks.serve_layer` (`make bench`).

Starts each contender's server in turn, round after round, and drives all of them by the same clients: a bare decoupled
model (the ceiling of Triton's Python backend), an ensemble, this project's openai_bls on
generate_stream, gRPC and /v1. All emit the same tokens at the same pace, so that only the serving layer differs. Prints
tables; writes JSON and a section of RESULTS.md. --quick is one short round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from benchmarks.clients.driver import Clients, exit_on_sigterm
from benchmarks.contenders.servers import BARE, CONTENDERS, OURS, OURS_TLS, Contender, prepare
from benchmarks.serve_layer.cells import Results, Shape
from benchmarks.serve_layer.stages import Session
from benchmarks.serve_layer.summary import json_document, markdown, terminal
from benchmarks.support import ROOT
from benchmarks.support.machine import Conditions, conditions
from benchmarks.support.options import levels, positive, recorded_command
from benchmarks.support.report import with_section
from openai_bls.launcher.errors import LaunchError

_RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_FOLDER = ROOT / "benchmarks" / "results"
_NAME = "serve_layer"
_STAGES = ("throughput", "crowd", "paced")

_FULL = {"concurrency": (1, 16, 64, 128, 512), "rounds": 3, "seconds": 3.0, "singles": 50}
_QUICK = {"concurrency": (64, 128, 512), "rounds": 1, "seconds": 1.5, "singles": 25}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve_layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round; writes files only where --out says")
    parser.add_argument("--contenders", type=_names(CONTENDERS), default=list(CONTENDERS), help="with commas between")
    parser.add_argument("--tls", action="store_true", help="ours over HTTPS, too")
    parser.add_argument("--stages", type=_names(_STAGES), default=list(_STAGES), help=f"of {', '.join(_STAGES)}")
    parser.add_argument("--concurrency", type=levels, help="levels of the throughput stage (1,16,64,128,512)")
    parser.add_argument("--rounds", type=positive, help="over all contenders (3)")
    parser.add_argument("--seconds", type=float, help="for a cell; requests in progress then end (3)")
    parser.add_argument("--singles", type=positive, help="requests one after another, for the first token (50)")
    parser.add_argument("--prompt-tokens", type=positive, default=64, help="about (default %(default)s)")
    parser.add_argument("--output-tokens", type=positive, default=128, help="exactly (default %(default)s)")
    parser.add_argument("--step-delay-ms", type=float, default=5.0, help="of paced stages (default %(default)s)")
    parser.add_argument("--paced-concurrency", type=positive, default=64, help="default %(default)s")
    parser.add_argument("--crowd", type=positive, default=2000, help="streams at a time (default %(default)s)")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for JSON, without RESULTS.md then")
    return parser


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(known)}")
        # In the usual order, whatever the order given: the bare model comes first.
        return [name for name in known if name in names]

    return parse


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, Shape]:
    """The options, and the amounts that they ask for."""
    parser = _parser()
    parser.set_defaults(**(_QUICK if parser.parse_args(arguments).quick else _FULL))
    options = parser.parse_args(arguments)
    shape = Shape(
        levels=options.concurrency,
        seconds=options.seconds,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        step_delay_ms=options.step_delay_ms,
        paced_level=options.paced_concurrency,
        singles=options.singles,
        crowd=options.crowd,
    )
    return options, shape


def run(session: Session, contenders: Sequence[Contender], stages: Sequence[str], rounds: int) -> None:
    """All rounds; each goes over all contenders before the next begins."""
    for number in range(1, rounds + 1):
        for contender in contenders:
            ours = contender == OURS
            crowd = ours and "crowd" in stages
            session.fast(contender, number, throughput="throughput" in stages, crowd=crowd)
        for contender in contenders:
            if contender in (BARE, OURS) and "paced" in stages:
                session.paced(contender, number)


def write(results: Results, shape: Shape, made: Conditions, folder: Path, document: Path | None) -> None:
    """Write JSON to `folder`, and the section of `document`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_NAME}.json").write_bytes(json_document(results, shape, made))
    if document is not None:
        text = document.read_text(encoding="utf-8") if document.exists() else "# Results\n"
        section = markdown(results, made)
        document.write_text(with_section(text, _NAME.replace("_", "-"), section), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request of openai_bls failed, 2 if nothing could be measured."""
    options, shape = parse(arguments)
    made = conditions(recorded_command(["benchmarks.serve_layer"], arguments, ["--out", "--repository"]))
    results = Results()
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {line}", file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="serve_layer-") as scratch, Clients() as clients:
            session = Session(clients, prepare(options.repository, Path(scratch)), shape, results, say)
            contenders = [*(CONTENDERS[name] for name in options.contenders), *([OURS_TLS] if options.tls else [])]
            run(session, contenders, options.stages, options.rounds)
    except (LaunchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(terminal(results))
    if options.out or not options.quick:
        write(results, shape, made, options.out or _FOLDER, None if options.out else _RESULTS)
    return int(any(cell.result.failed for cell in results.cells if cell.result.path.startswith(OURS.name)))


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
