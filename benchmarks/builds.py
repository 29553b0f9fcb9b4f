"""The embedded engine by how a checkpoint is built: on one GPU or several, in its own type or in FP8.

`python -m benchmarks.builds --shape qwen2.5-7b --tp-sizes 1,2 --fp8`

Each build is loaded in a process of its own and driven directly, with no server: tokens/s at several concurrencies, the
time to the first token of long prompts, and the demo's golden answers by the same build of the demo. A build that the
engine refuses is a row that says why; each is told on stderr as it ends.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.asking import Asker
from benchmarks.engine import Level, Variant, Work, golden_lines, run_level
from benchmarks.gpu import check_golden, checkpoint_in, in_child, room_for
from benchmarks.options import levels
from benchmarks.random_checkpoint import DEMO, SHAPES
from benchmarks.report import MISSING, markdown_table
from openai_bls.core.checkpoint import read_json
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.manifest import EngineLoadError, Manifest, QuantDistance, write_manifest
from openai_bls.engines.registry import create_engine

_PROMPT_TOKENS = 64
"""Tokens of a prompt where tokens/s are measured."""
_PROMPT_ROUNDS = 3
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Build:
    """Settings of a manifest, and options of the engine."""

    name: str
    tensor_parallel_size: int = 1
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
            tensor_parallel_size=self.tensor_parallel_size,
            quant=self.quant,
        )
        write_manifest(version_dir, manifest)
        return version_dir


FP8 = (
    Build("FP8 weights", quant="fp8"),
    Build("FP8 weights and KV cache", quant="fp8", options={"kv_cache_dtype": "fp8"}),
)


@dataclass
class Result:
    """What came of one build."""

    speed: Variant
    first_token_ms: dict[int, float] = field(default_factory=dict)
    """By tokens of the prompt, of one that comes alone."""
    gpu_bytes: int = 0
    """Of tensors: weights, and a KV cache of the same tokens for every build."""
    self_test: str = ""
    golden: dict[str, Any] | None = None
    golden_error: str = ""


@dataclass(frozen=True)
class Plan:
    """What every build is asked."""

    concurrency: Sequence[int]
    tokens: int
    """Of an answer."""
    prompts: Sequence[int]
    """Tokens of long prompts."""
    limit_s: float

    def fitting(self, checkpoint: Path) -> Plan:
        """The plan without the prompts that are too long for a model."""
        most = read_json(checkpoint / "config.json").get("max_position_embeddings", 2048)
        return replace(self, prompts=[length for length in self.prompts if length < most])

    @property
    def max_model_len(self) -> int:
        """Tokens of a sequence."""
        return max([_PROMPT_TOKENS + self.tokens, *(length + 1 for length in self.prompts)])

    @property
    def options(self) -> dict[str, str]:
        """Options of the engine."""
        cache = max(self.concurrency) * (_PROMPT_TOKENS + self.tokens + 32) + self.max_model_len
        return {
            "max_batch_size": str(max(self.concurrency)),
            "max_tokens_in_kv_cache": str(cache),
            "prefix_sharing": "false",
        }


def attempt(seconds: float, function: Any, *arguments: Any) -> tuple[Any, str]:
    """The result of a call in a process of its own, or what went wrong."""
    try:
        return in_child(seconds, function, *arguments), ""
    except (RuntimeError, TimeoutError) as error:
        return None, str(error)


def measure(build: Build, folder: Path, checkpoint: Path, plan: Plan, golden: bool) -> Result:
    """Load and drive a build, here; what goes wrong is in the result."""
    result = Result(Variant(build.name, build.options | plan.options))
    version_dir = build.write(folder, checkpoint, max(plan.concurrency), plan.max_model_len)
    try:
        drive(result, version_dir, plan)
    except Exception as error:  # what was measured before is still worth having
        result.speed.error = f"{type(error).__name__}: {error}"
    if golden:
        (folder / "golden").mkdir(exist_ok=True)
        try:
            result.golden = check_golden(build.write(folder / "golden", DEMO, 64, 2048), build.options)
        except Exception as error:
            result.golden_error = f"{type(error).__name__}: {error}"
    return result


def drive(result: Result, version_dir: Path, plan: Plan) -> None:
    """Load a build and measure it."""
    import torch

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
        for level in plan.concurrency:
            # Whatever is made on first use.
            run_level(asker, Work(_PROMPT_TOKENS, 8, limit_s=plan.limit_s), level, min(level, 32))
            work = Work(_PROMPT_TOKENS, plan.tokens, limit_s=plan.limit_s)
            speed.levels.append(run_level(asker, work, level, work.requests_at(level)))
            print(
                f"{speed.name} at {level}: {speed.levels[-1].tokens_per_s:,.0f} tokens/s", file=sys.stderr, flush=True
            )
        for length in plan.prompts:
            result.first_token_ms[length] = first_token_ms(asker, length, plan.limit_s)
    finally:
        engine.close()


def first_token_ms(asker: Asker, length: int, limit_s: float) -> float:
    """Median milliseconds to the token after a prompt of `length`."""
    numbers, taken = random.Random(length), []
    for _ in range(1 + _PROMPT_ROUNDS):
        request = GenerationRequest(
            request_id=0,
            prompt_token_ids=[numbers.randrange(1000) for _ in range(length)],
            max_tokens=1,
            sampling=SamplingParams(temperature=0.0),
        )
        [answer] = asker.ask([request], limit_s)
        taken.append(answer.times[0] - answer.asked)
    return statistics.median(taken[1:]) * 1e3


def logprob_distances(checkpoint: Path) -> dict[str, QuantDistance]:
    """Log-probabilities of the golden answers by plain passes, held against those in float32."""
    import torch
    from tokenizers import Tokenizer

    from openai_bls.engines.embedded import model_loader, quant_distance
    from openai_bls.engines.embedded.plain_pass import RoundedCache

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [tokenizer.encode(line["raw"] + line["answer"]).ids for line in golden_lines() if "raw" in line]
    ids = [0, *(token for text in texts for token in text[1:])]

    def logprobs(
        dtype: Literal["float32", "bfloat16"], quant: Literal["", "fp8"] = "", *, cache: bool = False
    ) -> torch.Tensor:
        manifest = Manifest(
            engine="transformers",
            model_name="m",
            max_model_len=1,
            max_batch_size=1,
            created=1,
            dtype=dtype,
            quant=quant,
        )
        model = model_loader.read_model(checkpoint, manifest, device, "eager")
        caches = (RoundedCache(config=model.config) if cache else None for _ in texts)
        return torch.cat([quant_distance.logprobs(model, *pair) for pair in zip(texts, caches, strict=True)])

    exact = logprobs("float32")
    found = {
        "bfloat16": logprobs("bfloat16"),
        "FP8 weights": logprobs("bfloat16", "fp8"),
        "FP8 KV cache": logprobs("bfloat16", cache=True),
        "FP8 weights and KV cache": logprobs("bfloat16", "fp8", cache=True),
    }
    return {name: quant_distance.measure(exact, one, ids) for name, one in found.items()}


def speed_table(results: Sequence[Result], at: Sequence[int]) -> str:
    """Time per token and tokens/s as Markdown, each beside its ratio to the first build's."""
    first = results[0].speed.levels

    def cells(found: Sequence[Level], i: int) -> list[str]:
        if i >= len(found):
            return [MISSING] * 3
        ratio = f"{found[i].tokens_per_s / first[i].tokens_per_s:.2f}" if i < len(first) else MISSING
        return [f"{found[i].gap_p50:.2f}", f"{found[i].tokens_per_s:,.0f}", ratio]

    headers = [cell for level in at for cell in (f"ITL p50 ms at {level}", f"tokens/s at {level}", "times")]
    rows = [
        [
            one.speed.name,
            f"{one.speed.load_s:.1f}" if one.speed.levels else MISSING,
            *(cell for i in range(len(at)) for cell in cells(one.speed.levels, i)),
            one.speed.error.replace("|", "/")[:_ERROR_CHARACTERS],
        ]
        for one in results
    ]
    return markdown_table(["build", "load s", *headers, "error"], rows)


def load_table(results: Sequence[Result], prompts: Sequence[int]) -> str:
    """What a build holds, how it passed its self-test, and the time of long prompts, as Markdown."""
    rows = [
        [
            one.speed.name,
            f"{one.gpu_bytes / 2**30:.1f}" if one.gpu_bytes else MISSING,
            *(f"{one.first_token_ms[length]:.1f}" if length in one.first_token_ms else MISSING for length in prompts),
            one.self_test or "refused",
        ]
        for one in results
    ]
    first_tokens = [f"TTFT ms of {length:,} tokens" for length in prompts]
    return markdown_table(["build", "GiB", *first_tokens, "self-test"], rows)


def golden_table(results: Sequence[Result]) -> str:
    """Golden answers as Markdown."""
    counts = ("alone", "together", "answers")
    rows = [
        [
            one.speed.name,
            *(str(one.golden[count]) if one.golden else MISSING for count in counts),
            (one.golden["error"] if one.golden else one.golden_error).replace("|", "/")[:_ERROR_CHARACTERS],
        ]
        for one in results
    ]
    return markdown_table(["golden answers", *counts, "error"], rows)


def distance_table(distances: dict[str, QuantDistance]) -> str:
    """Distances of log-probabilities as Markdown."""
    rows = [[name, f"{one.mean:.4f}", f"{one.max:.4f}", f"{one.same_greedy:.2%}"] for name, one in distances.items()]
    return markdown_table(("distance to float32", "mean", "max", "same greedy token"), rows)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builds", description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", default=DEMO, help="default: the demo's")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead, kept for the next run")
    parser.add_argument("--tp-sizes", type=levels, default="1", help="GPUs, with commas between (default %(default)s)")
    parser.add_argument("--fp8", action="store_true", help="FP8 as well, and distances of log-probabilities")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="default %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer (default %(default)s)")
    parser.add_argument("--prompts", type=levels, default="2048,8192", help="tokens, one alone (default %(default)s)")
    parser.add_argument("--no-golden", dest="golden", action="store_false", help="leave out the demo's answers")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each part (default %(default)s)")
    options = parser.parse_args(arguments)
    builds = [Build(f"{size} GPU" + "s" * (size > 1), size) for size in options.tp_sizes]
    checkpoint = options.checkpoint
    if options.shape:  # kept for the next run
        checkpoint = checkpoint_in(room_for(options.shape), options.shape, options.limit_s)
    plan = Plan(options.concurrency, options.tokens, options.prompts, options.limit_s).fitting(checkpoint)
    results = []
    with tempfile.TemporaryDirectory(prefix="builds-") as work:
        for build in (*builds, *(FP8 if options.fp8 else ())):
            result, problem = attempt(options.limit_s, measure, build, Path(work), checkpoint, plan, options.golden)
            results.append(result or Result(Variant(build.name, build.options, error=problem), golden_error=problem))
            print(results[-1], file=sys.stderr, flush=True)
    tables = [speed_table(results, options.concurrency), load_table(results, options.prompts)]
    tables += [golden_table(results)] if options.golden else []
    if options.fp8:
        # Those of random weights mean nothing.
        distances, problem = attempt(options.limit_s, logprob_distances, DEMO if options.shape else checkpoint)
        tables.append(problem or distance_table(distances))
    print("\n\n".join(tables))
    return int(any(level.failed for one in results for level in one.speed.levels))


if __name__ == "__main__":
    sys.exit(main())
