"""Check the embedded engine's features and say what each costs: `python -m benchmarks.features --out OUT`.

The engine runs in this process, on whatever device is there and on a random checkpoint: of a 7B model on a GPU, of a
tiny one on a CPU. First it is asked for everything at once, and the answers are checked (`feature_cases.py`). Then
plain greedy sequences are timed beside ones that ask for a feature (`feature_costs.py`). After the checks and after
every measurement `features.json` and `features.md` are written anew.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import feature_cases, feature_costs
from benchmarks.asking import Asker
from benchmarks.engine import ROOT, Variant, gpu_versions, parse_variant, show_log
from benchmarks.feature_cases import TOGETHER, Outcome, Subject
from benchmarks.feature_costs import PROMPT_TOKENS, Costs
from benchmarks.machine import conditions
from benchmarks.options import levels, positive
from benchmarks.random_checkpoint import SHAPES, room_for, write
from benchmarks.report import MISSING, compact, markdown_table, number
from benchmarks.stats import spread
from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.engines.registry import create_engine

_BUDGETS_S = {"cpu": 50.0, "cuda": 540.0}
_SHAPES = {"cpu": "tiny", "cuda": "qwen2.5-7b"}
_MAX_MODEL_LEN = 2048
_GRAMMARS = (
    "Milliseconds to the first token of one request. The first grammar is asked for right after the engine's start; "
    "the library and the vocabulary load while the model does."
)
_COSTS = (
    "Output tokens/s of all sequences together, greedy, from the first request to the last token; prompts of "
    f"{PROMPT_TOKENS} tokens included, medians of the rounds. In the last rows one half of a batch is under a grammar "
    "and the other plain: each half's tokens/s while both run. 'of plain': a sequence's rate over that of a plain one "
    "among plain ones only."
)


@dataclass
class Results:
    """What has been found out so far."""

    made: dict[str, Any]
    counts: tuple[int, ...]
    """Of sequences at a time."""
    checks: list[Outcome] = field(default_factory=list)
    grammars: dict[str, float] = field(default_factory=dict)
    """As `feature_costs.first_grammars` has it."""
    costs: Costs = field(default_factory=Costs)

    @property
    def good(self) -> bool:
        """Whether nothing has failed."""
        return bool(self.checks) and all(one.good for one in self.checks) and not self.costs.errors

    def write(self, out: Path | None) -> None:
        """Write what there is into the folder `out`, if there is one."""
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "features.json").write_bytes(compact(asdict(self)))
            (out / "features.md").write_text(summary(self), encoding="utf-8")


def summary(results: Results) -> str:
    """The results as Markdown."""
    made, costs = results.made, results.costs
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    checks = [[one.name, "ok" if one.good else "FAILED", one.said.replace("|", "\\|")] for one in results.checks]
    parts = [
        "# What the embedded engine's features do and cost",
        f"`{made['command']}`",
        f"{made['date']}, {made['cores']} cores ({made['cpu_model']}), load average before {made['load_before']}. "
        f"{versions}.",
        "## Checks",
        markdown_table(["check", "", "says"], checks),
    ]
    if results.grammars:
        keys = ("first", "another", "again", "none")
        body = [[f"{results.grammars[key]:,.1f}" for key in keys]]
        head = ["first grammar", "another", "the first again", "no grammar"]
        parts += ["## Grammars", _GRAMMARS, markdown_table(head, body)]
    if costs.rates:
        rounds = f"Rounds: {costs.rounds}" + (f"; no time for {costs.left_out} more." if costs.left_out else ".")
        head = ["", *(cell for count in results.counts for cell in (f"tokens/s at {count}", "of plain"))]
        parts += ["## Costs", _COSTS, rounds, markdown_table(head, cost_rows(costs, results.counts))]
    parts += [f"FAILED {error}" for error in costs.errors]
    return "\n\n".join(parts) + "\n"


def cost_rows(costs: Costs, counts: Sequence[int]) -> list[list[str]]:
    """A line for each row of `costs`: tokens/s, and how that compares to plain, for each number of sequences."""
    body = []
    for name, by_count in costs.rates.items():
        cells = []
        for count in counts:
            rate, plain = spread(by_count.get(count, [])), spread(costs.rates.get("plain", {}).get(count, []))
            cells.append(number(rate, 0))
            if rate is None or plain is None:
                cells.append(MISSING)
            else:
                cells.append(f"{rate.median / plain.median / costs.shares[name]:.0%}")
        body.append([name, *cells])
    return body


def prepare(work: Path, shape: str, sequences: int, device: str) -> Path:
    """A random checkpoint of `shape`, and the engine built from it; returns the engine's version folder."""
    source, repository = work / shape, work / "features-repository"
    if not (source / "model.safetensors.index.json").is_file():
        write(shape, source, device)
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()
    if not repository.exists():
        ignored = shutil.ignore_patterns("checkpoint", "tokenizer", "engine.json", "__pycache__", ".aside-*")
        shutil.copytree(ROOT / "model_repository", repository, ignore=ignored)
    options = BuildOptions(
        model=str(source), model_repository=repository, max_model_len=_MAX_MODEL_LEN, max_batch_size=sequences
    )
    build(options, lambda line: print(f"build: {line}", file=sys.stderr, flush=True))
    return repository / "tensorrt_llm" / "1"


def run(options: argparse.Namespace, work: Path, device: str, ends: float) -> Results:
    """Everything, with checkpoints in the folder `work`."""
    shape: str = options.shape or _SHAPES[device]
    version_dir = prepare(work, shape, max(*options.sequences, 2 * TOGETHER), device)
    versions = gpu_versions() | {"shape": shape, "engine options": options.variant.name}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["llguidance"] = importlib.metadata.version("llguidance")
    results = Results(asdict(conditions(options.command, versions)), options.sequences)
    asker = Asker()
    engine = asker.engine = create_engine(version_dir, asker.on_step, options.variant.options)
    try:
        if engine.info.grammar_backend:
            results.grammars = feature_costs.first_grammars(asker, engine.info)
        exact = device == "cpu" or options.variant.options.get("device") == "cpu"
        subject = Subject(asker, engine.info, version_dir / "tokenizer", SHAPES[shape]["hidden_size"], exact)
        for outcome in feature_cases.run(subject):
            results.checks.append(outcome)
            print(f"{'ok' if outcome.good else 'FAILED':7} {outcome.name}: {outcome.said}", flush=True)
        results.write(options.out)
        feature_costs.price(
            asker,
            feature_costs.features(options.tokens, engine.info),
            options.sequences,
            options.tokens,
            options.rounds,
            ends,
            results.costs,
            lambda: results.write(options.out),
        )
    finally:
        engine.close()
    return results


def _tokens(text: str) -> int:
    value = positive(text)
    if value > _MAX_MODEL_LEN - PROMPT_TOKENS:
        raise argparse.ArgumentTypeError(f"at most {_MAX_MODEL_LEN - PROMPT_TOKENS}")
    return value


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a check or a measurement failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--work", type=Path, help="folder for checkpoints, kept (default: one that is removed)")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="of the checkpoint (default: a 7B on a GPU, else tiny)")
    parser.add_argument("--sequences", type=levels, default="1,64", help="at a time (default %(default)s)")
    parser.add_argument("--tokens", type=_tokens, default=128, help="of each output (default %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="default %(default)s")
    parser.add_argument(
        "--budget-s", type=float, help="seconds for everything, for fewer rounds (default: 540 on a GPU, else 50)"
    )
    parser.add_argument(
        "--variant",
        type=parse_variant,
        default=Variant("default", {}),
        metavar="NAME:OPTION=VALUE,...",
        help="options of the engine, as benchmarks.engine takes them",
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    show_log()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.command = " ".join(["python -m benchmarks.features", *(sys.argv[1:] if arguments is None else arguments)])
    ends = started + (_BUDGETS_S[device] if options.budget_s is None else options.budget_s)
    if options.work is not None:
        results = run(options, options.work, device, ends)
    else:
        parent = room_for(options.shape or _SHAPES[device]).parent
        with tempfile.TemporaryDirectory(prefix="openai_bls-features-", dir=parent) as folder:
            results = run(options, Path(folder), device, ends)
    results.write(options.out)
    print(summary(results))
    return int(not results.good)


if __name__ == "__main__":
    sys.exit(main())
