"""Prompts with images and of text alone on the embedded engine, by both of its runners.

`python -m benchmarks.images.runners`: requests have a picture each, one picture for all, or as many tokens of text; end
tokens end nothing. The runners are loaded in turn and round after round. Prints a table in Markdown: medians over the
rounds.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.support import ROOT
from benchmarks.support.asking import Asker
from benchmarks.support.engine import Level, gpu_versions, measured, show_log
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels, positive
from benchmarks.support.report import markdown_table
from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.launcher.testing import copy_models
from openai_bls.transport.engine_process.loading import load_engine

RUNNERS = ("continuous_batching", "dynamic_cache")
_KINDS = ("an image each", "one image for all", "text alone")
_MOST_REPEATS = 8
"""Bound of the times that the question is behind an image: lengths of prompts differ."""
_TEXT = "What is in the picture?"
_LIMIT_S = 300.0


def requests(processor: VisionProcessor, kind: str, count: int, side: int, tokens: int) -> list[GenerationRequest]:
    """Requests for `tokens` tokens each, after prompts of several lengths."""
    numbers = random.Random(count)
    image = picture(side)

    def request() -> GenerationRequest:
        text = processor.image_token + _TEXT * numbers.randrange(1, _MOST_REPEATS)
        prompt, media = processor.expand(text, [(side, side)]), None
        if kind == _KINDS[-1]:
            words = [one for one in prompt if one not in processor.image_token_ids]
            prompt = random.choices(words, k=len(prompt))
        else:
            media = MediaPrompt((picture(side) if kind == _KINDS[0] else image,), text, (), processor.count(prompt))
        return GenerationRequest(0, prompt, max_tokens=tokens, sampling=SamplingParams(temperature=0), media=media)

    return [request() for _ in range(count)]


def picture(side: int) -> Image:
    """A picture of noise."""
    return Image(side, side, random.randbytes(3 * side * side), random.randbytes(16).hex())


def run(version_dir: Path, runner: str, plan: argparse.Namespace) -> dict[tuple[str, int], Level]:
    """Levels of one runner, by kind of prompt and streams."""
    asker = Asker()
    processor = VisionProcessor(version_dir / "tokenizer")
    asker.engine = engine = load_engine(version_dir, asker.on_step, {"runner": runner}, EngineSettings()).engine
    found = {}
    try:
        for kind in _KINDS:
            for level in plan.streams:
                # Whatever is made on first use.
                measured(asker, requests(processor, kind, level, plan.side, 8), level, _LIMIT_S)
                asked = requests(processor, kind, max(4, plan.per_stream * level), plan.side, plan.tokens)
                found[kind, level] = one = measured(asker, asked, level, _LIMIT_S)
                print(f"{runner}, {kind}, {level}: {one.tokens_per_s:,.0f}", file=sys.stderr, flush=True)
                if one.failed:
                    raise RuntimeError(f"{one.failed} of {one.requests} requests failed")
    finally:
        engine.close()
    return found


def table(rounds: dict[str, list[dict[tuple[str, int], Level]]]) -> str:
    """Tokens/s and milliseconds to the first token, by kind of prompt, streams and runner."""
    body = []
    for kind, level in rounds[RUNNERS[0]][0]:
        cells = [[one[kind, level] for one in rounds[runner]] for runner in RUNNERS]
        speeds = [statistics.median(one.tokens_per_s for one in cell) for cell in cells]
        first = [statistics.median(one.first_token_p50 for one in cell) for cell in cells]
        ratio = f"{speeds[0] / speeds[1]:.2f}"
        body.append([kind, str(level), *(f"{one:,.0f}" for one in speeds), ratio, *(f"{one:.1f}" for one in first)])
    names = ["tokens/s, " + runner for runner in RUNNERS], ["ms to the first token" for _ in RUNNERS]
    return markdown_table(["prompts with", "streams", *names[0], "times", *names[1]], body)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images.runners", description=__doc__)
    parser.add_argument("--model", default=str(ROOT / "demo" / "vision-checkpoint"), help="a model that takes images")
    parser.add_argument("--streams", type=levels, default=(1, 8), help="requests at a time, with commas between")
    parser.add_argument("--tokens", type=positive, default=64, help="tokens of an answer")
    parser.add_argument("--per-stream", type=positive, default=4, help="requests of each stream")
    parser.add_argument("--side", type=positive, default=48, help="pixels of a side of a picture")
    parser.add_argument("--rounds", type=positive, default=3)
    plan = parser.parse_args(arguments)
    show_log()
    logging.getLogger("openai_bls").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "model_repository"
        copy_models(ROOT / "model_repository", repository)
        build(
            BuildOptions(plan.model, repository, "transformers", max_images=1),
            lambda line: print(line, file=sys.stderr),
        )
        rounds: dict[str, list[dict[tuple[str, int], Level]]] = {runner: [] for runner in RUNNERS}
        for number in range(plan.rounds):
            for runner in RUNNERS if number % 2 == 0 else reversed(RUNNERS):
                rounds[runner].append(run(repository / "tensorrt_llm" / "1", runner, plan))
    print(conditions("python -m benchmarks.images.runners", gpu_versions()), file=sys.stderr)
    print(table(rounds))


if __name__ == "__main__":
    main()
