"""Speculative decoding in the embedded engine at batch 1: `python -m benchmarks.speculation [CHECKPOINT]`.

Two engines of one checkpoint in this process, one of which drafts by n-grams, answer the same requests in turns. The
chats are the demo's. On a GPU a checkpoint of random weights shows what drafts cost and not what they save: its near
ties turn with the width of a step, and a draft of its own output is then wrong from there on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.asking import Answer, Asker
from benchmarks.engine import golden_lines, show_log
from benchmarks.options import positive
from benchmarks.random_checkpoint import DEMO
from benchmarks.report import markdown_table
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.registry import create_engine

_GREEDY = SamplingParams(temperature=0)
_DRAWN = SamplingParams(temperature=1.0, seed=5)
_MAX_MODEL_LEN = 2048


@dataclass(frozen=True)
class Chat:
    """Token ids of a chat, and of the same with its answer and its question once more."""

    prompt: list[int]
    again: list[int]


@dataclass
class Load:
    """Requests of one kind, and how both engines answer them."""

    name: str
    requests: Sequence[GenerationRequest]
    plain: list[float] = field(default_factory=list)
    """Tokens/s in each round."""
    drafting: list[float] = field(default_factory=list)
    """The same with speculation."""
    plain_steps: int = 0
    """In one round, as all that follows."""
    drafting_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    equal: int = 0
    """Answers with the same tokens."""


def rate(answers: Sequence[Answer]) -> float:
    """Tokens/s between the first token of each answer and its last."""
    further = [answer.times for answer in answers if len(answer.times) > 1]
    return sum(len(times) - 1 for times in further) / sum(times[-1] - times[0] for times in further)


def ask(asker: Asker, requests: Sequence[GenerationRequest]) -> list[Answer]:
    """Answers, one after the other.

    Raises:
        RuntimeError: one ended with an error.
    """
    answers = asker.ask(requests, at_once=1)
    if errors := [answer.error for answer in answers if answer.error]:
        raise RuntimeError(errors[0])
    return answers


def measure(load: Load, plain: Asker, drafting: Asker, rounds: int) -> None:
    """Have both engines answer the load in turns."""
    assert plain.engine is not None
    assert drafting.engine is not None
    for _ in range(rounds):
        before = plain.engine.stats(), drafting.engine.stats()
        wanted = ask(plain, [msgspec.structs.replace(request, prediction=()) for request in load.requests])
        found = ask(drafting, load.requests)
        after = plain.engine.stats(), drafting.engine.stats()
        load.plain.append(rate(wanted))
        load.drafting.append(rate(found))
        load.plain_steps, load.drafting_steps = (b.steps - a.steps for a, b in zip(before, after, strict=True))
        load.drafted = after[1].draft_tokens - before[1].draft_tokens
        load.accepted = after[1].accepted_draft_tokens - before[1].accepted_draft_tokens
        load.equal = sum(a.tokens == b.tokens for a, b in zip(wanted, found, strict=True))


def loads(plain: Asker, chats: Sequence[Chat], tokens: int) -> list[Load]:
    """Loads that copy and, with sampling, such as copy less; predictions are the plain engine's answers."""
    assert plain.engine is not None
    ends = plain.engine.info.eos_token_ids
    replace = msgspec.structs.replace
    once = [GenerationRequest(0, chat.prompt, tokens, _GREEDY, stop_token_ids=ends) for chat in chats]
    again = [replace(request, prompt_token_ids=chat.again) for request, chat in zip(once, chats, strict=True)]
    drawn = [replace(request, sampling=_DRAWN) for request in once]
    own = [tuple(answer.tokens) for answer in ask(plain, once)]
    source, known = random.Random(1), sorted({token for answer in own for token in answer})
    noise = tuple(source.choice(known) for _ in range(tokens))
    predicted = [replace(request, prediction=answer) for request, answer in zip(once, own, strict=True)]
    return [
        Load("copying: its own output as prediction", predicted),
        Load("quoting: the answer in the prompt, n-grams", again),
        Load("sampled", drawn),
        Load("sampled, noise as prediction", [replace(request, prediction=noise) for request in drawn]),
    ]


def table(measured: Sequence[Load]) -> str:
    """The results as Markdown; rates are medians of the rounds, and so is their ratio."""
    headers = ("load", "tokens/s", "with drafts", "times", "steps", "with drafts", "drafted", "accepted", "equal")
    rows = [
        [
            load.name,
            *(f"{statistics.median(rates):,.1f}" for rates in (load.plain, load.drafting)),
            f"{statistics.median(b / a for a, b in zip(load.plain, load.drafting, strict=True)):.3f}",
            *(f"{count:,}" for count in (load.plain_steps, load.drafting_steps, load.drafted, load.accepted)),
            f"{load.equal} of {len(load.requests)}",
        ]
        for load in measured
    ]
    return markdown_table(headers, rows)


def demo_chats(checkpoint: Path, count: int) -> list[Chat]:
    """The demo's chats with the longest answers, by the checkpoint's tokenizer and template."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)

    def ids(messages: list[dict[str, str]]) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    plain = [line for line in golden_lines() if "messages" in line and "tools" not in line]
    chats = []
    for line in sorted(plain, key=_tokens, reverse=True)[:count]:
        asked: list[dict[str, str]] = line["messages"]
        answered = {"role": "assistant", "content": line["answer"]}
        chats.append(Chat(ids(asked), ids([*asked, answered, asked[-1]])))
    return chats


def _tokens(line: dict[str, Any]) -> int:
    return int(line["tokens"])


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", default=DEMO, help="default: the demo's")
    parser.add_argument("--chats", type=positive, default=4, help="requests of a load (default %(default)s)")
    parser.add_argument("--tokens", type=positive, default=256, help="most of an answer (default %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="default %(default)s")
    options = parser.parse_args(arguments)
    show_log()
    manifest = Manifest(
        engine="transformers",
        model_name=options.checkpoint.name,
        max_model_len=_MAX_MODEL_LEN,
        max_batch_size=8,
        created=1,
        checkpoint=str(options.checkpoint.resolve()),
    )
    # Two engines share the device: neither may take what is left of its memory.
    settings = {"max_tokens_in_kv_cache": str(8 * _MAX_MODEL_LEN), "max_num_tokens": "512", "prefix_sharing": "false"}
    with tempfile.TemporaryDirectory(prefix="speculation-") as work, ExitStack() as stack:
        write_manifest(Path(work), manifest)
        plain, drafting = Asker(), Asker()
        for asker, method in ((plain, ""), (drafting, "ngram")):
            asker.engine = create_engine(Path(work), asker.on_step, settings | {"speculative_method": method})
            stack.callback(asker.engine.close)
        measured = loads(plain, demo_chats(options.checkpoint, options.chats), options.tokens)
        for load in measured:
            ask(drafting, load.requests[:1])
            measure(load, plain, drafting, options.rounds)
            print(table([load]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
