"""Speculative decoding in the embedded engine: `python -m benchmarks_transformers.speculation --shape SHAPE`.

Two engines of one checkpoint in this process, one of which drafts, answer the same requests in turns. The checkpoint is
a continuing one (`random_checkpoint`), whose loads are sure to be copied as far as they say (`copying`): on a GPU a
random model's near ties turn with the width of a step, and a draft of its own output would be wrong from there on.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.support import copying
from benchmarks.support.asking import Answer, Asker, answered
from benchmarks.support.checkpoint_shapes import SHAPES
from benchmarks.support.copying import Continued, Load
from benchmarks.support.engine import show_log
from benchmarks.support.options import positive
from benchmarks.support.random_checkpoint import checkpoint_in, cycle
from benchmarks.support.report import markdown_table
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.record import EmbeddedRecord

_MAX_MODEL_LEN = 2048


def rate(answers: Sequence[Answer]) -> float:
    """Tokens/s between the first token of each answer and its last."""
    further = [answer.times for answer in answers if len(answer.times) > 1]
    return sum(len(times) - 1 for times in further) / sum(times[-1] - times[0] for times in further)


def measure(load: Load, plain: Asker, drafting: Asker, rounds: int) -> None:
    """Have both engines answer the load in turns."""
    assert plain.engine is not None
    assert drafting.engine is not None
    for _ in range(rounds):
        before = plain.engine.stats(), drafting.engine.stats()
        unpredicted = [msgspec.structs.replace(request, prediction=()) for request in load.requests]
        wanted = answered(plain, unpredicted, at_once=load.at_once)
        found = answered(drafting, load.requests, at_once=load.at_once)
        after = plain.engine.stats(), drafting.engine.stats()
        load.plain.append(rate(wanted))
        load.drafting.append(rate(found))
        load.plain_steps, load.drafting_steps = (b.steps - a.steps for a, b in zip(before, after, strict=True))
        load.drafted = after[1].draft_tokens - before[1].draft_tokens
        load.accepted = after[1].accepted_draft_tokens - before[1].accepted_draft_tokens
        load.answers = len(wanted)
        load.equal = sum(a.tokens == b.tokens for a, b in zip(wanted, found, strict=True))


def table(measured: Iterable[Load]) -> Iterator[str]:
    """Lines of the results as Markdown, one as each load is done; rates and their ratio are medians of the rounds."""
    headers = ("load", "tokens/s", "with drafts", "times", "steps", "with drafts", "drafted", "accepted", "equal")
    yield from markdown_table(headers, []).splitlines()
    for load in measured:
        cells = [
            load.name,
            *(f"{statistics.median(rates):,.1f}" for rates in (load.plain, load.drafting)),
            f"{load.times:.3f}",
            *(f"{count:,}" for count in (load.plain_steps, load.drafting_steps, load.drafted, load.accepted)),
            f"{load.equal} of {load.answers}",
        ]
        yield markdown_table(headers, [cells]).splitlines()[-1]


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks_transformers.speculation", description=__doc__.partition("\n")[0]
    )
    made.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b", help="of the checkpoint (default %(default)s)")
    made.add_argument("--work", type=Path, help="folder where these are kept; default: a temporary one")
    made.add_argument("--tokens", type=positive, default=256, help="most of an answer (default %(default)s)")
    made.add_argument("--rounds", type=positive, default=3, help="default %(default)s")
    made.add_argument("--batch", type=positive, default=64, help="max_batch_size (default %(default)s)")
    made.add_argument("--limit-s", type=positive, default=600, help="begin no load after that (default %(default)s)")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    show_log()
    for line in table(run(parser().parse_args(arguments))):
        print(line, flush=True)
    return 0


def run(options: argparse.Namespace) -> Iterator[Load]:
    """The loads, each once it is measured."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="speculation-") as folder, ExitStack() as stack:
        work = Path(folder)
        kept: Path = options.work or work
        checkpoint = checkpoint_in(kept, options.shape, continuing=True)
        plain, drafting = engines(checkpoint, work, options.batch, stack)
        assert plain.engine is not None
        continued = Continued(cycle(options.shape), options.tokens)
        found = copying.loads(continued, plain.engine.info)
        for load in itertools.takewhile(lambda _: time.monotonic() - started < options.limit_s, found):
            answered(drafting, load.requests[:1])
            measure(load, plain, drafting, options.rounds)
            yield load


def engines(checkpoint: Path, work: Path, batch: int, stack: ExitStack) -> tuple[Asker, Asker]:
    """The engine without drafts and the one with them, which share the device until `stack` is left."""
    manifest = Manifest(
        engine="transformers",
        model_name=checkpoint.name,
        max_model_len=_MAX_MODEL_LEN,
        max_batch_size=batch,
        created=1,
        checkpoint=str(checkpoint.resolve()),
    )
    (work / "tokenizer").symlink_to(checkpoint.resolve())  # for grammars
    # Neither may take what is left of the device's memory.
    tokens = batch * _MAX_MODEL_LEN // 2
    settings = {"max_tokens_in_kv_cache": str(tokens), "max_num_tokens": "512", "prefix_sharing": "false"}
    plain, drafting = Asker(), Asker()
    for asker, method in ((plain, "none"), (drafting, "ngram")):
        write_manifest(work, manifest)
        engine = create_engine(work, asker.on_step, settings | {"speculative_method": method})
        stack.callback(engine.close)
        asker.engine = engine
        # The second one need not find out once more which runner does.
        manifest = msgspec.structs.replace(
            manifest, record=EmbeddedRecord(self_test=getattr(engine, "self_test", None)).fields()
        )
    return plain, drafting


if __name__ == "__main__":
    sys.exit(main())
