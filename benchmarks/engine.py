"""Drive the embedded engine directly, in this process, with no server: `python -m benchmarks.engine`.

Closed loop through the same `Engine` interface that the model `tensorrt_llm` uses: at each level as many requests are
in progress as `--concurrency` says, and each that ends is followed by another. Prompts are random and all different;
end tokens end nothing. Several `--variant`s share one load of the weights:

    python -m benchmarks.engine --variant plain:attention=sdpa --variant graphs:attention=paged,cuda_graphs=true
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import math
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.machine import conditions
from benchmarks.options import levels
from benchmarks.report import number, text_table
from benchmarks.stats import spread
from openai_bls.core.engine import Engine
from openai_bls.core.engine_types import GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.registry import create_engine

ROOT = Path(__file__).resolve().parent.parent
HEADERS = (
    "variant", "conc.", "requests", "failed", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "tokens/s", "of floor"
)  # fmt: skip
_PROMPT_IDS = 1000  # ids that every vocabulary has
_GIVE_UP_S = 30.0


@dataclass(frozen=True)
class Work:
    """What is asked of the engine at each level."""

    prompt_tokens: int = 64
    output_tokens: int = 128
    requests_per_slot: int = 3
    min_requests: int = 4
    limit_s: float = 60.0
    """Seconds for a level; what has come by then is counted."""
    temperature: float = 0.0

    def requests_at(self, level: int) -> int:
        """How many requests are made at concurrency `level`."""
        return max(self.min_requests, self.requests_per_slot * level)


@dataclass
class Level:
    """What came of one level. Times are milliseconds."""

    concurrency: int
    requests: int
    """Ended."""
    failed: int
    tokens: int
    seconds: float
    tokens_per_s: float
    first_token_p50: float
    first_token_p99: float
    gap_p50: float
    gap_p99: float
    steps: int
    cut_short: bool


@dataclass
class Variant:
    """What came of one set of engine options."""

    name: str
    options: dict[str, str]
    load_s: float = 0.0
    """Seconds until the engine was ready."""
    levels: list[Level] = field(default_factory=list)
    error: str = ""
    floor_share: float | None = None
    """At concurrency 1: the time in which the weights can be read once, over the time a token took."""


@dataclass(frozen=True)
class Floor:
    """What limits a step of one sequence."""

    weight_bytes: int
    """Of all tensors."""
    step_bytes: int
    """Of those that every step reads: without the input embeddings, of which it reads a row, unless they are the
    output layer too."""
    bytes_per_s: float
    """Read and written by a copy from device memory to device memory; 0 without a GPU."""

    @property
    def token_ms(self) -> float:
        """The least that a token can take."""
        return self.step_bytes / self.bytes_per_s * 1e3 if self.bytes_per_s else math.nan


class Load:
    """One closed loop. Give `on_step` to an engine, then call `run`."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._next_id = 0
        self._left = 0
        self._live: dict[int, tuple[float, list[float]]] = {}
        self._times: list[tuple[float, list[float]]] = []
        self._work = Work()
        self._random = random.Random(0)
        self._tokens = self._failed = self._ended = 0
        self._stopping = False

    def on_step(self, deltas: Sequence[TokenDelta]) -> None:
        """The engine's listener."""
        now = time.perf_counter()
        with self._lock:
            for delta in deltas:
                entry = self._live.get(delta.request_id)
                if entry is None:
                    continue
                self._tokens += len(delta.token_ids)
                entry[1].extend([now] * len(delta.token_ids))
                if delta.finish_reason is None:
                    continue
                del self._live[delta.request_id]
                self._times.append(entry)
                if not self._stopping:
                    self._ended += 1
                    self._failed += len(entry[1]) != self._work.output_tokens
                    self._submit()
            if not self._live:
                self._done.set()

    def _submit(self) -> None:
        if not self._left or self._stopping or self._engine is None:
            return
        self._left -= 1
        self._next_id += 1
        prompt = [self._random.randrange(_PROMPT_IDS) for _ in range(self._work.prompt_tokens)]
        self._live[self._next_id] = (time.perf_counter(), [])
        self._engine.submit(
            GenerationRequest(
                request_id=self._next_id,
                prompt_token_ids=prompt,
                max_tokens=self._work.output_tokens,
                sampling=SamplingParams(temperature=self._work.temperature),
            )
        )

    def run(self, engine: Engine, work: Work, level: int, requests: int | None = None) -> Level:
        """Make the requests of one level and wait for them."""
        with self._lock:
            self._engine, self._work = engine, work
            self._left = work.requests_at(level) if requests is None else requests
            self._times, self._tokens, self._failed, self._ended = [], 0, 0, 0
            self._stopping = False
            self._done.clear()
            steps, started = engine.stats().steps, time.perf_counter()
            for _ in range(level):
                self._submit()
        in_time = self._done.wait(work.limit_s)
        with self._lock:
            seconds, tokens = time.perf_counter() - started, self._tokens
            self._stopping = not in_time
            times = [*self._times, *self._live.values()]
            live = list(self._live)
        if in_time:
            seconds = max(entry[1][-1] for entry in times if entry[1]) - started if tokens else seconds
        for request_id in live:
            engine.cancel(request_id)
        if not self._done.wait(_GIVE_UP_S):
            raise RuntimeError("the engine does not end its requests")
        first = [(stamps[0] - start) * 1e3 for start, stamps in times if stamps]
        gaps = np.concatenate([np.diff(stamps) for _, stamps in times] or [np.array([])]) * 1e3
        return Level(
            concurrency=level,
            requests=self._ended,
            failed=self._failed,
            tokens=tokens,
            seconds=seconds,
            tokens_per_s=tokens / seconds,
            first_token_p50=_percentile(first, 50),
            first_token_p99=_percentile(first, 99),
            gap_p50=_percentile(gaps, 50),
            gap_p99=_percentile(gaps, 99),
            steps=engine.stats().steps - steps,
            cut_short=not in_time,
        )


def _percentile(values: Any, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan


@contextlib.contextmanager
def kept_weights() -> Iterator[None]:
    """Let all engines that are loaded meanwhile share their models' weights."""
    from openai_bls.engines.embedded import model_loader
    from openai_bls.engines.embedded.gpu import fused_layers

    models: dict[tuple[str, str, str], Any] = {}
    original = model_loader.read_model

    def read(folder: Path, manifest: Any, device: Any, implementation: str) -> Any:
        key = (str(folder), manifest.dtype, str(device))
        if key not in models:
            models[key] = original(folder, manifest, device, implementation)
        model = models[key]
        fused_layers.restore(model)
        model.config._attn_implementation = implementation
        return model

    model_loader.read_model = read
    try:
        yield
    finally:
        model_loader.read_model = original


def floor(version_dir: Path) -> Floor:
    """What limits the engine in `version_dir` on this machine."""
    checkpoint = version_dir / "checkpoint"
    weight_bytes = embedding = 0
    has_output = False
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            [length] = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = msgspec.json.decode(file.read(length))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            weight_bytes += end - begin
            embedding += (end - begin) * name.endswith("embed_tokens.weight")
            has_output |= name.endswith("lm_head.weight")
    return Floor(weight_bytes, weight_bytes - embedding * has_output, copy_bandwidth())


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy in the device's memory, the best of some; 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    del source, target
    torch.cuda.empty_cache()
    return 2 * (1 << 31) / best


def run_variant(
    variant: Variant,
    version_dir: Path,
    levels: Sequence[int],
    work: Work,
    limit: Floor,
    after: Callable[[Load, Engine], None] | None = None,
) -> None:
    """Load an engine with the variant's options and measure every level; what fails is written into `variant`."""
    load = Load()
    started = time.monotonic()
    try:
        engine = create_engine(version_dir, load.on_step, {"max_batch_size": str(max(levels))} | variant.options)
    except EngineLoadError as error:
        variant.error = str(error)
        return
    variant.load_s = time.monotonic() - started
    try:
        for level in levels:
            # Whatever is made on first use.
            load.run(engine, Work(work.prompt_tokens, 8, limit_s=work.limit_s), level, min(level, 32))
            measured = load.run(engine, work, level)
            variant.levels.append(measured)
            print(f"{variant.name} at {level}: {measured.tokens_per_s:,.0f} tokens/s", file=sys.stderr, flush=True)
            if level == 1 and limit.bytes_per_s:
                variant.floor_share = limit.token_ms / measured.gap_p50
        if after is not None:
            after(load, engine)
    except Exception as error:  # the other variants are still worth having
        variant.error = f"{type(error).__name__}: {error}"
    finally:
        engine.close()


def rows(variants: Sequence[Variant]) -> list[list[str]]:
    """A row for each level of each variant, cells in the order of `HEADERS`."""

    def shown(value: float | None, digits: int) -> str:
        return number(spread([value]), digits)

    return [
        [
            variant.name,
            str(level.concurrency),
            f"{level.requests}{'+' if level.cut_short else ''}",
            str(level.failed),
            shown(level.first_token_p50, 1),
            shown(level.first_token_p99, 1),
            shown(level.gap_p50, 2),
            shown(level.gap_p99, 2),
            shown(level.tokens_per_s, 0),
            f"{variant.floor_share:.0%}" if level.concurrency == 1 and variant.floor_share else "",
        ]
        for variant in variants
        for level in variant.levels
    ]


def document(variants: Sequence[Variant], limit: Floor, work: Work, command: str) -> bytes:
    """Everything measured, as JSON."""
    content = {
        "conditions": asdict(conditions(command, gpu_versions())),
        "work": asdict(work),
        "floor": asdict(limit) | {"token_ms": limit.token_ms},
        "variants": [asdict(variant) for variant in variants],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def gpu_versions() -> dict[str, str]:
    """The GPU and what drives it."""
    import torch

    found = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found |= {"GPU": torch.cuda.get_device_name(), "CUDA": str(torch.version.cuda)}
    return found


def parse_variant(text: str) -> Variant:
    """A variant from `name:option=value,option=value`; either part may be left out."""
    name, colon, options = text.rpartition(":")
    if not colon and "=" not in text:
        name, options = text, ""
    pairs = [part.partition("=") for part in options.split(",") if part]
    if any(not equals for _, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: options are name=value, with commas between")
    return Variant(name or options or "default", {key.strip(): value.strip() for key, _, value in pairs})


def profile_levels(out: Path, levels: Sequence[int], work: Work, name: str, load: Load, engine: Engine) -> None:
    """Where the device's time goes at each of `levels`: a table each, in files under `out`."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        return
    short = Work(work.prompt_tokens, 32, limit_s=work.limit_s)
    for level in levels:
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            measured = load.run(engine, short, level, level)
        table = trace.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=90)
        head = f"{name}, {level} requests at a time, {measured.steps} steps in {measured.seconds:.3f} s\n"
        (out / f"profile-{name}-{level}.txt").write_text(head + str(table) + "\n")


def add_work_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make a `Work`."""
    parser.add_argument("--prompt-tokens", type=int, default=64, help="default %(default)s")
    parser.add_argument("--output-tokens", type=int, default=128, help="default %(default)s")
    parser.add_argument("--requests-per-slot", type=int, default=3, help="times concurrency (default %(default)s)")
    parser.add_argument("--min-requests", type=int, default=4, help="at each level (default %(default)s)")
    parser.add_argument("--level-s", type=float, default=60.0, help="most seconds for a level (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="default %(default)s")


def work_of(options: argparse.Namespace) -> Work:
    """The work that `options` ask for."""
    return Work(
        options.prompt_tokens,
        options.output_tokens,
        options.requests_per_slot,
        options.min_requests,
        options.level_s,
        options.temperature,
    )


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request or a variant failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-dir", type=Path, default=ROOT / "model_repository" / "tensorrt_llm" / "1")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="levels (default %(default)s)")
    parser.add_argument("--variant", type=parse_variant, action="append", metavar="NAME:OPTION=VALUE,...")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="start no further variant after so long")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="write where the device's time goes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement")
    add_work_arguments(parser)
    options = parser.parse_args(arguments)
    show_log()
    given = sys.argv[1:] if arguments is None else arguments
    work, variants = work_of(options), options.variant or [Variant("default", {})]
    limit = floor(options.engine_dir)
    deadline = time.monotonic() + options.budget_s
    with kept_weights():
        for variant in variants:
            if time.monotonic() > deadline:
                variant.error = "left out: no time"
                continue
            after = None
            if options.profile is not None:
                # A profiler may take the process down: the measurements are on disk before.
                after = functools.partial(_save_and_profile, options, variants, limit, work, variant.name)
            run_variant(variant, options.engine_dir, options.concurrency, work, limit, after)
            if options.json:
                options.json.write_bytes(document(variants, limit, work, " ".join(["benchmarks.engine", *given])))
    print(report(variants, limit))
    if options.json:
        options.json.write_bytes(document(variants, limit, work, " ".join(["benchmarks.engine", *given])))
    return int(any(variant.error or any(level.failed for level in variant.levels) for variant in variants))


def _save_and_profile(
    options: argparse.Namespace,
    variants: list[Variant],
    limit: Floor,
    work: Work,
    name: str,
    load: Load,
    engine: Engine,
) -> None:
    if options.json:
        options.json.write_bytes(document(variants, limit, work, "benchmarks.engine"))
    options.profile.mkdir(parents=True, exist_ok=True)
    ends = sorted({min(options.concurrency), max(options.concurrency)})
    try:
        profile_levels(options.profile, ends, work, name, load, engine)
    except Exception as error:  # the measurements are what matters
        print(f"no profile: {type(error).__name__}: {error}", file=sys.stderr)


def report(variants: Sequence[Variant], limit: Floor) -> str:
    """The table for the terminal, with what failed."""
    parts = [text_table(HEADERS, rows(variants))]
    if limit.bytes_per_s:
        parts.append(
            f"floor: {limit.step_bytes / 1e9:.2f} GB of weights a step (of {limit.weight_bytes / 1e9:.2f}), copies "
            f"at {limit.bytes_per_s / 1e12:.2f} TB/s: {limit.token_ms:.2f} ms a token, {1e3 / limit.token_ms:.0f}/s"
        )
    parts += [f"FAILED {variant.name}: {variant.error}" for variant in variants if variant.error]
    return "\n\n".join(parts)


def show_log() -> None:
    """Let the engine say what it chose."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("openai_bls").setLevel(logging.INFO)


def overrides_environment(options: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that give a server's engine the same options."""
    return {f"OPENAI_BLS_ENGINE_{name.upper()}": value for name, value in options.items()}


if __name__ == "__main__":
    sys.exit(main())
