"""A listener that records and checks, and a tiny random checkpoint."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.engine_types import GenerationRequest, Logprobs, SamplingParams, TokenDelta
from openai_bls.core.manifest import load_manifest, write_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess

PATIENCE_S = 60.0
VOCAB_SIZE = 512
MAX_MODEL_LEN = 512
GREEDY = SamplingParams(temperature=0)


NULL_TOKENS = ",".join(str(i) for i in range(10, 90))
"""Distinct tokens, so that a stop in the middle is met once."""


def create_behind(version_dir: Path, on_step: StepListener, overrides: Mapping[str, str]) -> ProcessEngine:
    """The engine in `version_dir` in a process of its own, with this interpreter."""
    words = arguments(version_dir, overrides, EngineSettings())
    return ProcessEngine(StartedProcess(sys.executable, words, 5), on_step, silence_s=60)


class SharedProcess:
    """An engine in a process of its own, which tests share until one closes it."""

    def __init__(self, version_dir: Path, **overrides: str) -> None:
        self._version_dir = version_dir
        self._overrides = overrides
        self._engine: ProcessEngine | None = None
        self._listener: StepListener = lambda _: None

    @contextlib.contextmanager
    def started(self) -> Iterator[tuple[Engine, Recorder]]:
        """The engine with a new recorder."""
        recorder = self._listener = Recorder()
        if self._engine is None or self._engine.closed:
            self._engine = create_behind(self._version_dir, self._tell, self._overrides)
        yield self._engine, recorder
        assert recorder.breaches == []

    def _tell(self, deltas: Sequence[TokenDelta]) -> None:
        self._listener(deltas)

    def close(self) -> None:
        """Close the engine, if one runs."""
        if self._engine is not None:
            self._engine.close()


class Recorder:
    """Keeps every delta and notes breaches of the listener's contract."""

    def __init__(self) -> None:
        self.after: StepListener = lambda _: None
        """Called at the end of each step, on the engine's thread."""
        self._changed = threading.Condition()
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, TokenDelta] = {}
        self.steps: list[list[TokenDelta]] = []
        self.threads: set[int] = set()
        self.breaches: list[str] = []

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        with self._changed:
            self.threads.add(threading.get_ident())
            self.steps.append(list(deltas))
            if not deltas:
                self.breaches.append("an empty step")
            for delta in deltas:
                if delta.request_id in self.ends:
                    self.breaches.append(f"{delta} after {self.ends[delta.request_id]}")
                if delta.logprobs is not None and len(delta.logprobs.token_logprobs) != len(delta.token_ids):
                    self.breaches.append(f"log-probabilities and tokens differ in number: {delta}")
                if delta.request_id in self.tokens and (delta.prompt_logprobs or delta.cached_tokens):
                    self.breaches.append(f"not the first delta: {delta}")
                if (delta.finish_reason == "error") != (delta.error is not None):
                    self.breaches.append(f"error and finish_reason differ: {delta}")
                self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
                if delta.finish_reason is not None:
                    self.ends[delta.request_id] = delta
            self._changed.notify_all()
        self.after(deltas)

    def wait_end(self, *request_ids: int) -> None:
        """Until all of these have ended."""
        with self._changed:
            done = self._changed.wait_for(lambda: set(request_ids) <= set(self.ends), timeout=PATIENCE_S)
        assert done, f"no end for {set(request_ids) - set(self.ends)}"

    def wait_tokens(self, request_id: int, count: int = 1) -> None:
        """Until a request has that many tokens."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.tokens.get(request_id, ())) >= count, timeout=PATIENCE_S)
        assert done

    def deltas(self, request_id: int) -> list[TokenDelta]:
        """All of a request's."""
        with self._changed:
            return [delta for step in self.steps for delta in step if delta.request_id == request_id]

    def forget(self, request_ids: Iterable[int]) -> None:
        """Let ids be used again."""
        with self._changed:
            for request_id in request_ids:
                self.tokens.pop(request_id, None)
                self.ends.pop(request_id, None)

    def logprobs(self, request_id: int) -> Logprobs:
        """All of a request's, together."""
        found = Logprobs([], [], [])
        for delta in self.deltas(request_id):
            assert (delta.logprobs is None) == (not delta.token_ids)
            if delta.logprobs is not None:
                found.token_logprobs.extend(delta.logprobs.token_logprobs)
                found.top_token_ids.extend(delta.logprobs.top_token_ids)
                found.top_logprobs.extend(delta.logprobs.top_logprobs)
        return found

    def reason(self, request_id: int) -> str | None:
        return self.ends[request_id].finish_reason


def request(
    request_id: int,
    prompt: Sequence[int] = (5, 6, 7),
    max_tokens: int = 8,
    sampling: SamplingParams = GREEDY,
    **more: Any,
) -> GenerationRequest:
    """Args: more: further fields of `GenerationRequest`."""
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=list(prompt), max_tokens=max_tokens, sampling=sampling, **more
    )


def run_all(engine: Engine, recorder: Recorder, requests: Sequence[GenerationRequest]) -> list[list[int]]:
    """The tokens of requests that are submitted together."""
    for one in requests:
        engine.submit(one)
    recorder.wait_end(*(one.request_id for one in requests))
    return [recorder.tokens[one.request_id] for one in requests]


def change(folder: Path, **fields: Any) -> None:
    """Change fields of the manifest in an engine's folder."""
    if "engine" in fields:
        # The record of another engine is nobody's.
        fields = {"record": {}} | fields
    write_manifest(folder, msgspec.structs.replace(load_manifest(folder), **fields))


def change_record(folder: Path, **fields: Any) -> None:
    """Change fields of the engine's record in the manifest in its folder."""
    found = load_manifest(folder).record
    change(folder, record={**found, **msgspec.to_builtins(fields)})


def make_checkpoint(folder: Path, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> None:
    """A random Qwen2 with spread-out logits, and a byte-level tokenizer."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=257,
        pad_token_id=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [257, 258]
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.7
    model.generation_config.top_k = 20
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template="{{ messages }}"
    ).save_pretrained(folder)
