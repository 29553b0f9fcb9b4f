"""Self-test of a prepared engine in a separate process: whatever happens there, the last good engine stays.

The process is forked from a server of multiprocessing's that has imported the engine, so that several builds of one
process import it once. Where there is a GPU the server imports nothing: CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import BuildError, Manifest, first_line
from openai_bls.core.settings import EngineSettings, engine_overrides
from openai_bls.engines.registry import parse_options
from openai_bls_transformers.cache_memory import ContextLengthError
from openai_bls_transformers.loading import load
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.record import EmbeddedRecord, SelfTestRecord

_ENGINE = "openai_bls_transformers.engine.engine"
_CACHE_TOKENS = 4096
"""Tokens of the KV cache, unless a sequence needs more: a server may run on this machine."""
_SKIP = "--no-self-test leaves it to the load"


class Outcome(msgspec.Struct, frozen=True):
    """Findings of the process."""

    record: SelfTestRecord | None = None
    rejected: list[str] = []
    """Choices of runner and attention that did not pass, each with its reason."""
    max_model_len: int = 0
    """Longest sequence, in tokens, to which the context was capped for lack of memory; 0 if it was not."""
    context: str = ""
    """Why it was."""
    refusal: str = ""
    """Why the engine does not load, if there is no record."""


def self_test(prepared: Prepared, manifest: Manifest, *, cap: bool = False) -> Outcome:
    """Load the engine of the prepared checkpoint, and let it prove itself.

    Args:
        prepared: folders of the build.
        manifest: manifest of the engine.
        cap: shorten the longest sequence to what fits into memory.

    Raises:
        BuildError: it does not load, or no runner gives right answers; one sentence.
    """
    context = multiprocessing.get_context("forkserver")
    if not Path("/dev/nvidiactl").exists():
        context.set_forkserver_preload([_ENGINE])
    receiver, sender = context.Pipe(duplex=False)
    options = parse_options(engine_overrides(os.environ))[1]["transformers"]
    folders = {manifest.checkpoint: prepared.checkpoint, "lora": prepared.lora}
    # A quantization is measured on a text, and images need the processor there.
    if EmbeddedRecord.of(manifest).quant or manifest.max_images:
        folders["tokenizer"] = prepared.tokenizers[0]
    for name, folder in folders.items():
        (prepared.work / name).unlink(missing_ok=True)
        (prepared.work / name).symlink_to(folder.resolve())
    process = context.Process(target=_run, args=(sender, prepared.work.resolve(), manifest, options, cap))
    try:
        with interrupts_held():
            process.start()
    except OSError as error:
        raise BuildError(f"the self-test cannot be started: {first_line(error)}") from None
    sender.close()
    try:
        with contextlib.suppress(EOFError):
            outcome = msgspec.json.decode(receiver.recv_bytes(), type=Outcome)
            if outcome.refusal:
                raise BuildError(outcome.refusal)
            return outcome
        process.join()
        raise BuildError(_death(process.exitcode or 0))
    finally:
        receiver.close()
        process.kill()
        process.join()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from what is started: the builder ends it, and its imports would show a traceback.

    A signal that comes meanwhile is delivered at the end.
    """
    # What multiprocessing starts by itself would let them through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(code: int) -> str:
    if code == -9:
        return f"the self-test was killed, which is mostly for lack of memory: {_SKIP}, on a machine with more"
    return f"the self-test crashed (exit code {code}): this model cannot be served here; {_SKIP}, on another machine"


def _run(sender: Connection, version_dir: Path, manifest: Manifest, options: EngineOptions, cap: bool) -> None:
    """The process: one message, and nothing on the terminal."""
    threading.Thread(target=_end_with_the_builder, daemon=True).start()
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    try:
        outcome = _outcome(version_dir, manifest, options, cap)
    except Exception as error:
        outcome = Outcome(refusal=first_line(error))
    sender.send_bytes(msgspec.json.encode(outcome))


def _end_with_the_builder() -> None:
    builder = multiprocessing.parent_process()
    assert builder is not None
    builder.join()
    os._exit(1)


def _outcome(version_dir: Path, manifest: Manifest, options: EngineOptions, cap: bool) -> Outcome:
    try:
        return _load(version_dir, manifest, options)
    except ContextLengthError as error:
        if not cap:
            raise
        found, context = error.fits, str(error)
    outcome = _load(version_dir, msgspec.structs.replace(manifest, max_model_len=found), options)
    return msgspec.structs.replace(outcome, max_model_len=found, context=context)


def _load(version_dir: Path, manifest: Manifest, options: EngineOptions) -> Outcome:
    # One sequence of the longest length has to fit, as it has to at each load.
    cache = max(_CACHE_TOKENS, manifest.max_model_len)
    options = msgspec.structs.replace(options, max_tokens_in_kv_cache=options.max_tokens_in_kv_cache or cache)
    engine: Any = load(version_dir, manifest, EngineSettings(), lambda _: None, options)
    engine.close()
    return Outcome(engine.self_test, engine.rejected)
