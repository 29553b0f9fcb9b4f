"""The embedded engine by how a checkpoint is built: in its own data type or in FP8.

`python -m benchmarks_transformers.builds --shape qwen2.5-7b --fp8`

Each build is loaded in a process of its own and driven directly, with no server: tokens/s at several concurrencies, the
time to the first token of long prompts, JSON beside plain text, mixed load, and the demo's golden answers by the same
build of the demo. A build that the engine refuses is a row that says why; each is told on stderr as it ends.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.golden import check_golden
from benchmarks.support import lengths
from benchmarks.support.asking import Asker, answered, greedy, random_ids
from benchmarks.support.checkpoint_shapes import DEMO, SHAPES
from benchmarks.support.children import attempt, in_child
from benchmarks.support.copying import grammar_of
from benchmarks.support.engine import Variant, Work, run_levels
from benchmarks.support.options import levels
from benchmarks.support.random_checkpoint import checkpoint_in, room_for
from benchmarks_transformers import mixed_load
from benchmarks_transformers.build_report import (
    JSON_STREAMS,
    Result,
    golden_table,
    json_table,
    load_table,
    speed_table,
)
from openai_bls.core.checkpoint import read_json
from openai_bls.core.engine_types import Grammar
from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.record import EmbeddedRecord

_PROMPT_TOKENS = 64
"""Tokens of a prompt where tokens/s are measured."""
_PROMPT_ROUNDS = 3
_PROMPT_ANSWER = 17
"""Tokens after such a prompt."""
_PROMPT_S = 5.0
"""Seconds of such rounds after which there is no further one."""
_MIXED_TOKENS = 1536
"""Tokens in the KV cache for each sequence of the batch under mixed load: twice what they have on average."""


@dataclass(frozen=True)
class Build:
    """Settings of a manifest, and options of the engine."""

    name: str
    quant: Literal["", "fp8"] = ""
    options: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, checkpoint: Path, max_batch_size: int, max_model_len: int) -> Path:
        """Write its manifest into a folder of its own below `folder`, which is returned."""
        version_dir = folder / f"{checkpoint.name}-{self.name.replace(' ', '-')}"
        version_dir.mkdir()
        manifest = Manifest(
            engine="transformers",
            model_name=checkpoint.name,
            max_model_len=max_model_len,
            max_batch_size=max_batch_size,
            created=1,
            checkpoint=str(checkpoint.resolve()),
            record=EmbeddedRecord(self.quant).fields(),
        )
        (version_dir / "tokenizer").symlink_to(checkpoint.resolve())  # for grammars
        write_manifest(version_dir, manifest)
        return version_dir


FP8 = (
    Build("FP8 weights", quant="fp8"),
    Build("FP8 weights and KV cache", quant="fp8", options={"kv_cache_dtype": "fp8"}),
)


@dataclass(frozen=True)
class Plan:
    """What every build is asked."""

    concurrency: Sequence[int]
    tokens: int
    """Of an answer."""
    prompts: Sequence[int]
    """Tokens of long prompts."""
    limit_s: float
    json: bool = False
    rates: Sequence[int] = ()
    """Requests/s of mixed load."""
    rate_s: float = 6.0
    """Seconds of arrivals at each rate."""
    beside: int = 0
    """Tokens of a prompt beside 64 streams; 0 is none."""

    def fitting(self, checkpoint: Path) -> Plan:
        """The plan without the prompts that are too long for a model."""
        most = read_json(checkpoint / "config.json").get("max_position_embeddings", 2048)
        return replace(self, prompts=[length for length in self.prompts if length < most])

    @property
    def max_model_len(self) -> int:
        """Tokens of a sequence."""
        mixed = lengths.PROMPTS.most + lengths.OUTPUTS.most if self.rates else 0
        alone = (n + _PROMPT_ANSWER for n in (_PROMPT_TOKENS, *self.prompts, self.beside))
        return max(_PROMPT_TOKENS + self.tokens, mixed, *alone)

    @property
    def options(self) -> dict[str, str]:
        """Options of the engine."""
        each = max(_PROMPT_TOKENS + self.tokens + 32, _MIXED_TOKENS if self.rates or self.beside else 0)
        cache = max(self.concurrency) * each + self.max_model_len
        return {
            "max_batch_size": str(max(self.concurrency)),
            "max_tokens_in_kv_cache": str(cache),
            "prefix_sharing": "false",
        }


def measure(build: Build, folder: Path, checkpoint: Path, plan: Plan, golden: bool) -> Iterator[Result]:
    """Load and drive a build, here; what came so far after every part, and what goes wrong with it."""
    result = Result(Variant(build.name, plan.options | build.options))
    version_dir = build.write(folder, checkpoint, max(plan.concurrency), plan.max_model_len)
    try:
        yield from drive(result, version_dir, plan)
    except Exception as error:  # what was measured before is still worth having
        result.speed.error = f"{type(error).__name__}: {error}"
    if golden:
        (folder / "golden").mkdir(exist_ok=True)
        try:
            result.golden = check_golden(build.write(folder / "golden", DEMO, 64, 2048), build.options)
        except Exception as error:
            result.golden_error = f"{type(error).__name__}: {error}"
    yield result


def outcome(build: Build, found: Result | None, problem: str) -> Result:
    """What came of a build up to a problem, if there was one."""
    result = found or Result(Variant(build.name, build.options), golden_error=problem)
    result.speed.error = result.speed.error or problem
    return result


def drive(result: Result, version_dir: Path, plan: Plan) -> Iterator[Result]:
    """Load a build and measure it; the result after every part."""
    import torch
    import transformers  # noqa: F401  # which is no part of the load's time

    asker, speed, started = Asker(), result.speed, time.monotonic()
    try:
        engine: Any = create_engine(version_dir, asker.on_step, speed.options)
    except EngineLoadError as error:
        speed.error = str(error)
        return
    speed.load_s = time.monotonic() - started
    asker.engine = engine
    result.self_test = f"passed by {engine.self_test.runner} with attention {engine.self_test.attention}"
    if engine.self_test.fp8_noise is not None:
        result.self_test += f", noise of FP8 {engine.self_test.fp8_noise:.3f}"
    result.gpu_bytes = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    try:
        result.first_requests_ms = [alone_ms(asker, _PROMPT_TOKENS, seed, plan.limit_s)[0] for seed in range(2)]
        work = Work(_PROMPT_TOKENS, plan.tokens, limit_s=plan.limit_s)
        for level in run_levels(asker, speed.name, plan.concurrency, work):
            speed.levels.append(level)
            yield result
        for length in plan.prompts:
            result.prompts_ms[length] = prompt_ms(asker, length, plan.limit_s)
            yield result
        if plan.json and engine.info.grammar_backend:
            result.json = json_rates(asker, plan.tokens)
            yield result
        if plan.beside:
            result.beside = mixed_load.beside(asker, plan.beside)
            yield result
        for rate in plan.rates:
            if not result.mixed:  # whatever is made on first use
                mixed_load.run(asker, 5, 1, 1)
            result.mixed.append(mixed_load.run(asker, rate, plan.rate_s, 0))
            yield result
    finally:
        engine.close()


def alone_ms(asker: Asker, length: int, seed: int, limit_s: float) -> tuple[float, float]:
    """Milliseconds to the token after a prompt of `length`, and the median per token after that."""
    prompt = random_ids(random.Random(f"{length} {seed}"), length)
    [answer] = answered(asker, [greedy(prompt, _PROMPT_ANSWER)], limit_s)
    gaps = [b - a for a, b in itertools.pairwise(answer.times)]
    return (answer.times[0] - answer.asked) * 1e3, statistics.median(gaps) * 1e3


def prompt_ms(asker: Asker, length: int, limit_s: float) -> tuple[float, float]:
    """Medians of `alone_ms`, but for the first, unless one takes long."""
    taken: list[tuple[float, float]] = []
    while len(taken) <= _PROMPT_ROUNDS and sum(first for first, _ in taken) < _PROMPT_S * 1e3:
        taken.append(alone_ms(asker, length, len(taken), limit_s))
    first, further = zip(*(taken[1:] or taken), strict=True)
    return statistics.median(first), statistics.median(further)


def json_rates(asker: Asker, tokens: int) -> dict[str, float]:
    """Medians of tokens/s of streams under a grammar that does not end, and of plain ones, in turns."""
    assert asker.engine is not None
    item = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    schema = {"type": "array", "items": item, "minItems": tokens}
    endless = grammar_of({"type": "json_schema", "json_schema": schema}, asker.engine.info)
    kinds: dict[str, Grammar | None] = {"plain": None, "JSON": endless}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for grammar in kinds.values():  # whatever is made on first use
        _streams_rate(asker, grammar, 4, 0)
    for seed in range(1, 4):
        for name, grammar in kinds.items():
            rates[name].append(_streams_rate(asker, grammar, tokens, seed))
    return {name: statistics.median(found) for name, found in rates.items()}


def _streams_rate(asker: Asker, grammar: Grammar | None, tokens: int, seed: int) -> float:
    """Tokens/s of streams that are all asked for at once."""
    numbers = random.Random(seed)
    plain = [greedy(random_ids(numbers, _PROMPT_TOKENS), tokens) for _ in range(JSON_STREAMS)]
    answers = answered(asker, [msgspec.structs.replace(request, grammar=grammar) for request in plain])
    took = max(answer.ended for answer in answers) - min(answer.asked for answer in answers)
    return sum(len(answer.tokens) for answer in answers) / took


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks_transformers.builds", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("checkpoint", type=Path, nargs="?", default=DEMO, help="default: the demo's")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead, kept for the next run")
    parser.add_argument("--fp8", action="store_true", help="FP8 as well")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="default %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer (default %(default)s)")
    parser.add_argument("--prompts", type=levels, default="2048,8192", help="tokens, one alone (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="64 streams of JSON beside plain text as well")
    parser.add_argument("--no-golden", dest="golden", action="store_false", help="leave out the demo's answers")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each part (default %(default)s)")
    options = parser.parse_args(arguments)
    checkpoint = options.checkpoint
    if options.shape:  # kept for the next run
        checkpoint = in_child(options.limit_s, checkpoint_in, room_for(options.shape), options.shape)
    plan = Plan(options.concurrency, options.tokens, options.prompts, options.limit_s, options.json).fitting(checkpoint)
    results = []
    with tempfile.TemporaryDirectory(prefix="builds-") as work:
        for build in (Build("own type"), *(FP8 if options.fp8 else ())):
            found = attempt(options.limit_s, measure, build, Path(work), checkpoint, plan, options.golden)
            results.append(outcome(build, *found))
            print(results[-1], file=sys.stderr, flush=True)
    tables = [speed_table(results, options.concurrency), load_table(results, options.prompts)]
    tables += [json_table(results)] if options.json else []
    tables += [golden_table(results)] if options.golden else []
    print("\n\n".join(tables))
    return int(any(level.failed for one in results for level in one.speed.levels))


if __name__ == "__main__":
    sys.exit(main())
