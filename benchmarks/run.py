"""Start the real server and drive each way into it: `python -m benchmarks.run`.

With the null engine, which costs almost nothing and whose tokens are known, the figures are those of the serving layer
alone. `--engine auto` takes the engine that lies in the repository.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Run as a file: the package is beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.driver import Clients, exit_on_sigterm
from benchmarks.load import Shape, add_shape_arguments, run_levels, shape
from benchmarks.machine import Conditions, conditions, triton_version
from benchmarks.null_tokens import word_token_ids
from benchmarks.probe import ProbeError
from benchmarks.report import LEGEND, json_document, markdown_section, terminal, with_section
from benchmarks.stats import Measurement
from benchmarks.target import Target, grpc_target, http_target
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import RunningServer, run_server

_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "benchmarks" / "RESULTS.md"
_PATHS = ("/v1 chat", "/v1 completions", "generate_stream", "grpc")
_DEFAULT_PATHS = "/v1 chat,generate_stream,grpc"
_INTRODUCTION = f"""# Results

{LEGEND}

Absolute figures depend on the machine and on what else it does, and clients and server share its cores. What counts is
the ratio between paths, and between a path before and after a change, measured side by side.
"""


def targets_of(server: RunningServer, paths: list[str]) -> dict[str, Target]:
    """The targets of a running server by the names that tables show."""
    model = "openai_bls"
    every = {
        "/v1 chat": http_target("chat", server.openai_url, model=model),
        "/v1 completions": http_target("completions", server.openai_url, model=model),
        "generate_stream": http_target("generate_stream", server.http_url, model=model),
        "grpc": grpc_target(server.grpc_url, model=model),
    }
    return {path: every[path] for path in paths}


def environment(engine: str, step_delay_ms: float, repository: Path, concurrency: int) -> dict[str, str]:
    """What chooses the engine. The null engine runs `concurrency` sequences at a time, so none waits."""
    if engine == "auto":
        return {}
    chosen = {
        "OPENAI_BLS_ENGINE": engine,
        "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": str(concurrency),
        "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": f"{step_delay_ms:g}",
    }
    token_ids = word_token_ids(repository)
    if token_ids:
        chosen["OPENAI_BLS_ENGINE_NULL_TOKEN_IDS"] = ",".join(map(str, token_ids))
    return chosen


def run_engine(
    options: argparse.Namespace, wanted: Shape, clients: Clients, step_delay_ms: float
) -> tuple[list[Measurement], str]:
    """All measurements with one setting of the engine, on a server of their own; and Triton's version."""
    chosen = environment(options.engine, step_delay_ms, options.repository, max(wanted.levels))
    with run_server(options.repository, chosen) as server:
        version = triton_version(server.http_url)
        return run_levels(clients, targets_of(server, options.paths), wanted, server.pid), version


def write_results(key: str, title: str, results: list[Measurement], made: Conditions, note: str) -> None:
    """Write or rewrite one section of RESULTS.md."""
    document = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else _INTRODUCTION
    section = markdown_section(title, results, made, note)
    RESULTS.write_text(with_section(document, key, section), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("null", "auto"), default="null", help="default %(default)s")
    parser.add_argument(
        "--step-delay-ms", type=_delays, default="0,5", help="of the null engine, one or more (default %(default)s)"
    )
    parser.add_argument("--paths", type=_paths, default=_DEFAULT_PATHS, help=f"of {', '.join(_PATHS)} (%(default)s)")
    parser.add_argument("--repository", type=Path, default=_ROOT / "model_repository")
    parser.add_argument("--markdown", action="store_true", help="write the tables to benchmarks/RESULTS.md")
    parser.add_argument("--note", default="", help="a sentence for RESULTS.md on the circumstances")
    add_shape_arguments(parser)
    return parser


def _delays(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _paths(text: str) -> list[str]:
    paths = [part.strip() for part in text.split(",")]
    for path in paths:
        if path not in _PATHS:
            raise argparse.ArgumentTypeError(f"{path!r} is none of {', '.join(_PATHS)}")
    return paths


def recorded_command(arguments: Sequence[str]) -> str:
    """The command to repeat the measurement: without what only says where results go and what is noted beside them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    parser.add_argument("--note")
    _, kept = parser.parse_known_args(arguments)
    return shlex.join(["python", "-m", "benchmarks.run", *kept])


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if any request failed, 2 if the server could not be used."""
    options = _parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    made = conditions(recorded_command(given))
    delays = options.step_delay_ms if options.engine == "null" else [0.0]
    every: dict[str, list[Measurement]] = {}
    try:
        with Clients(options.client_processes) as clients:
            for delay in delays:
                results, version = run_engine(options, shape(options), clients, delay)
                made.versions.setdefault("tritonserver", version)
                title = f"Null engine, {delay:g} ms a step" if options.engine == "null" else "Embedded engine"
                print(f"\n{title}\n\n{terminal(results)}\n")
                if options.markdown:
                    key = f"null-{delay:g}ms" if options.engine == "null" else "auto"
                    write_results(key, title, results, made, options.note)
                every[title] = results
    except (OSError, ProbeError, LaunchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(LEGEND)
    if options.json:
        options.json.write_bytes(json_document(every, made))
    return 1 if any(one.failed for results in every.values() for one in results) else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
