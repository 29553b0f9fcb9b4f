"""The embedded engine by how a checkpoint is built: on one GPU or several, in its own type or in FP8.

`python -m benchmarks.builds --shape qwen2.5-7b --tp-sizes 1,2 --fp8`

Each build is loaded in a process of its own and driven directly, with no server: tokens/s at several concurrencies, and
the demo's golden answers by the same build of the demo. A build that the engine refuses is a row that says why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.engine import Floor, Level, Variant, Work, golden_lines, run_variant
from benchmarks.gpu import check_golden, in_child
from benchmarks.options import levels
from benchmarks.random_checkpoint import DEMO, SHAPES, write
from benchmarks.report import MISSING, markdown_table
from openai_bls.core.manifest import Manifest, QuantDistance, write_manifest

_MAX_MODEL_LEN = 2048
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Build:
    """Settings of a manifest, and options of the engine."""

    name: str
    tensor_parallel_size: int = 1
    quant: Literal["", "fp8"] = ""
    options: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, checkpoint: Path, max_batch_size: int) -> Path:
        """Write its manifest into a folder of its own below `folder`, which is returned."""
        version_dir = folder / f"{checkpoint.name}-{self.name.replace(' ', '-')}"
        version_dir.mkdir()
        manifest = Manifest(
            engine="transformers",
            model_name=checkpoint.name,
            max_model_len=_MAX_MODEL_LEN,
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
    golden: dict[str, Any] | None = None
    golden_error: str = ""


def attempt(seconds: float, function: Any, *arguments: Any) -> tuple[Any, str]:
    """The result of a call in a process of its own, or what went wrong."""
    try:
        return in_child(seconds, function, *arguments), ""
    except (RuntimeError, TimeoutError) as error:
        return None, str(error)


def measure(build: Build, folder: Path, options: argparse.Namespace) -> Result:
    """Load and drive a build."""
    variant = Variant(build.name, build.options | {"prefix_sharing": "false"})
    version_dir = build.write(folder, options.checkpoint, max(options.concurrency))
    work = Work(64, options.tokens, limit_s=options.limit_s)
    arguments = variant, version_dir, options.concurrency, work, Floor(0, 0, 0.0)
    speed, error = attempt(options.limit_s, run_variant, *arguments)
    if speed is None:
        variant.error = error
    result = Result(speed or variant)
    if options.golden:
        demo = build.write(folder / "golden", DEMO, 64)
        result.golden, result.golden_error = attempt(options.limit_s, check_golden, demo, build.options)
    return result


def logprob_distances(checkpoint: Path) -> dict[str, QuantDistance]:
    """Log-probabilities of the golden answers by plain passes, held against those in float32."""
    import torch
    from tokenizers import Tokenizer

    from openai_bls.engines.embedded import model_loader, quant_distance

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [tokenizer.encode(line["raw"] + line["answer"]).ids for line in golden_lines() if "raw" in line]
    ids = [0, *(token for text in texts for token in text[1:])]

    def logprobs(dtype: Literal["float32", "bfloat16"], quant: Literal["", "fp8"]) -> torch.Tensor:
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
        return torch.cat([quant_distance.logprobs(model, text) for text in texts])

    exact = logprobs("float32", "")
    return {
        "bfloat16": quant_distance.measure(exact, logprobs("bfloat16", ""), ids),
        "FP8 weights": quant_distance.measure(exact, logprobs("bfloat16", "fp8"), ids),
    }


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
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--tp-sizes", type=levels, default="1", help="GPUs, with commas between (default %(default)s)")
    parser.add_argument("--fp8", action="store_true", help="FP8 as well, and distances of log-probabilities")
    parser.add_argument("--concurrency", type=levels, default="1,64", help="default %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer (default %(default)s)")
    parser.add_argument("--no-golden", dest="golden", action="store_false", help="leave out the demo's answers")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each part (default %(default)s)")
    options = parser.parse_args(arguments)
    builds = [Build(f"{size} GPU" + "s" * (size > 1), size) for size in options.tp_sizes]
    with tempfile.TemporaryDirectory(prefix="builds-") as work:
        folder = Path(work)
        (folder / "golden").mkdir()
        if options.shape:
            options.checkpoint = folder / options.shape
            in_child(options.limit_s, write, options.shape, options.checkpoint)
        results = [measure(build, folder, options) for build in (*builds, *(FP8 if options.fp8 else ()))]
        tables = [speed_table(results, options.concurrency)]
        tables += [golden_table(results)] if options.golden else []
        if options.fp8:
            distances, problem = attempt(options.limit_s, logprob_distances, options.checkpoint)
            tables.append(problem or distance_table(distances))
    print("\n\n".join(tables))
    return int(any(level.failed for one in results for level in one.speed.levels))


if __name__ == "__main__":
    sys.exit(main())
