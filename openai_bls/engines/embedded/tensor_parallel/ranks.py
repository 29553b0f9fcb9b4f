"""Ranks of a model that several GPUs share: rank 0, the engine itself, and a process for each of the others.

Rank 0 schedules, samples and knows the requests. Before a step it sends the step's inputs to the other ranks, which
then run the same forward pass over their shards. Plain passes over a prompt are announced to them in the same way,
from within the modules that begin them. All that they have of rank 0 is a socket and the end of a pipe that closes with
its process, after which they end at once.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import torch
import transformers
from transformers.generation import continuous_batching

import openai_bls
from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.engines.embedded import model_loader
from openai_bls.engines.embedded.fp8_layers import Fp8Linear
from openai_bls.engines.embedded.lora_layers import layers_of
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.plain_pass import RoundedCache
from openai_bls.engines.embedded.runner import BatchingConfig
from openai_bls.engines.embedded.runner_choice import RunnerChoice
from openai_bls.engines.embedded.tensor_parallel import steps
from openai_bls.engines.embedded.tensor_parallel.collectives import TIMEOUT_SECONDS, Collectives
from openai_bls.engines.embedded.tensor_parallel.messages import (
    Attend,
    Begin,
    Head,
    Join,
    Load,
    Message,
    Pass,
    Reply,
    Stop,
    WriteAdapter,
)
from openai_bls.engines.embedded.tensor_parallel.plan import ShardPlan, plan_of
from openai_bls.engines.embedded.tensor_parallel.shards import SplitHead, load_shard, widths

logger = logging.getLogger(__name__)

HANG_SECONDS = TIMEOUT_SECONDS
"""Longest that a step may take: a rank that was stopped, or whose GPU hangs, says nothing."""
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 5.0
"""Time that ranks have to end before they are killed, and the engine's thread to end its requests."""
_ANSWER_SECONDS = 1.0
"""Time that the last answers have to leave the process."""
_FOLLOWER = "openai_bls.engines.embedded.tensor_parallel.follower"


class RankError(RuntimeError):
    """A rank has ended, or does not answer."""


def end_process() -> None:
    """End the process of an engine that has lost a rank, for the launcher to load the model again.

    Its GPU may wait inside a kernel for the one that is gone, which nothing else ends.
    """
    logging.shutdown()
    os._exit(1)


class Ranks:
    """The other ranks of a model, as rank 0 sees them; see `Peers`."""

    follows = False

    def __init__(self, folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device) -> None:
        """Start the other ranks and load every shard.

        Raises:
            EngineLoadError: the model cannot be split, there are too few GPUs, or a rank does not load.
        """
        self._size = manifest.tensor_parallel_size
        plan = _checked_plan(folder, manifest, options, device)
        self.group = Collectives(self._size)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._sending = threading.Lock()
        self._replies: SimpleQueue[Reply | None] = SimpleQueue()
        self._failure = ""
        self._closed = threading.Event()
        self._busy_since: float | None = None
        self._stepping = False
        self._wake: Callable[[], None] | None = None
        self._ended = threading.Event()
        """The engine's thread has ended its requests."""
        self._folder = Path(tempfile.mkdtemp(prefix="openai_bls_ranks_"))
        self._lifeline, self._life = os.pipe()
        try:
            devices = [_device(device, rank) for rank in range(self._size)]
            for rank in range(1, self._size):
                self._start(Load(str(folder), manifest, options, rank, str(devices[rank])))
            threading.Thread(target=self._watch, name="ranks", daemon=True).start()
            if device.type == "cuda":
                torch.cuda.set_device(devices[0])
            with model_loader.compiling_ahead(folder, manifest, options, devices[0]):
                self.model: Any = load_shard(folder, manifest, options, plan, 0, self.group, devices[0])
            self._require_replies()
            store = self._folder / "store"
            self._announce(Join(str(store)))
            self.group.join(store, 0, devices[0], *widths(self.model))
            self._require_replies()
            self._busy_since = None
        except BaseException as error:
            self.close()
            if isinstance(error, EngineLoadError) or not isinstance(error, Exception):
                raise
            raise EngineLoadError(f"the {self._size} ranks of this model do not meet: {error}") from None
        self.model.peers = self
        self._announce_passes()

    def facts(self, facts: CheckpointFacts) -> CheckpointFacts:
        """`facts` with the KV cache of one rank."""
        return msgspec.structs.replace(facts, kv_bytes_per_token=facts.kv_bytes_per_token // self._size)

    def attach(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called when a rank is lost, so that somebody calls `check`."""
        self._wake = wake

    def check(self) -> None:
        """Between two steps: raises `RankError` if a rank is lost."""
        self._busy_since = None
        if self._failure:
            raise RankError(self._failure)

    @contextmanager
    def attending(self, choice: RunnerChoice, loaded: str) -> Iterator[list[str]]:
        """Settle the model's attention on all ranks; yields a list which gets the other ranks' problems."""
        problems: list[str] = []
        self._send(Attend(choice, loaded))
        with self.group.silence():
            yield problems
        problems += [reply.problem for reply in self._all_replies() if reply.problem]

    def begin(self, config: BatchingConfig, cache: Any) -> None:
        """See `Peers`."""
        pages = int(cache.num_blocks)
        drafts = config.speculation
        sized = dataclasses.replace(
            config,
            max_tokens_in_kv_cache=pages * config.page_size,
            max_num_tokens=int(cache.max_batch_tokens),
            # What guesses stays here.
            speculation=drafts and dataclasses.replace(drafts, draft_model=None),
        )
        self._send(Begin(sized))
        for reply in self._all_replies():
            if reply.problem or reply.sectors != cache.num_sectors:
                problem = reply.problem or f"it has {reply.sectors} sectors, and the first GPU's {cache.num_sectors}"
                raise EngineLoadError(f"the KV cache of a further GPU cannot be set up: {problem}")

    @contextmanager
    def step(self, io: Any, pair: int, *, padded: bool, longest: int | None) -> Iterator[None]:
        """A step: its inputs go to the other ranks, and within it passes of the model are not announced."""
        layers = layers_of(self.model)
        adapters = layers is not None and layers.used
        self._announce(steps.captured(io, pair, padded=padded, longest=longest, adapters=adapters))
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def share(self, token_ids: torch.Tensor) -> None:
        """See `Peers`."""
        self.group.broadcast(token_ids)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """See `Peers`."""
        self._stepping = True
        try:
            with self.group.silence():
                yield
        finally:
            self._stepping = False

    def write_adapter(self, slot: int, folder: Path) -> None:
        """See `Peers`; from any thread, beside the steps."""
        try:
            self._send(WriteAdapter(slot, str(folder)))
            problem = next((reply.problem for reply in self._all_replies() if reply.problem), "")
        except (OSError, EngineLoadError) as error:
            problem = str(error)
        if problem:
            raise LoraError(f"a further GPU cannot load the adapter: {problem}")

    def ended(self) -> None:
        """The engine's thread has ended its requests, whatever the reason."""
        self._ended.set()

    def close(self) -> None:
        """End the other ranks."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._replies.put(None)  # for who loads an adapter now
        with suppress(OSError):
            self._send(Stop())
        until = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._kill()
        self.model = None
        gc.collect()  # of CUDA graphs, which hold on to NCCL
        self.group.leave()
        os.close(self._life)
        os.close(self._lifeline)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, load: Load) -> None:
        ours, theirs = socket.socketpair()
        # What this process can import, however it came by it.
        paths = [str(Path(openai_bls.__file__).parent.parent), *filter(None, sys.path)]
        process = subprocess.Popen(
            [_python(), "-m", _FOLLOWER, str(theirs.fileno()), str(self._lifeline), str(self._folder)],
            pass_fds=(theirs.fileno(), self._lifeline),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        theirs.close()
        self._processes.append(process)
        self._connections.append(Connection(ours.detach()))
        with suppress(OSError):  # it has ended already, which the watching thread finds
            self._connections[-1].send_bytes(msgspec.msgpack.encode(load))

    def _send(self, message: Message) -> None:
        data = msgspec.msgpack.encode(message)
        with self._sending:
            for connection in self._connections:
                connection.send_bytes(data)

    def _announce(self, message: Message) -> None:
        """Begin something that takes all ranks."""
        self._busy_since = time.monotonic()
        self._send(message)

    def _all_replies(self) -> Sequence[Reply]:
        """One of each further rank; raises `EngineLoadError` if one is lost."""
        found = []
        for _ in self._connections:
            reply = self._replies.get()
            if reply is None:
                raise EngineLoadError(f"this model cannot be served on {self._size} GPUs: {self._failure}")
            found.append(reply)
        return found

    def _require_replies(self) -> None:
        for reply in self._all_replies():
            if reply.problem:
                raise EngineLoadError(reply.problem)

    def _announce_passes(self) -> None:
        """Let the other ranks take part in passes of the model that are no steps."""
        base, head = self.model.base_model, self.model.get_output_embeddings()
        run_base = base.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self._stepping:
                self.group.finish()
                attention = str(self.model.config._attn_implementation)
                layers = layers_of(self.model)
                self._announce(
                    Pass(
                        token_ids=kwargs["input_ids"][0].tolist(),
                        attention=attention,
                        rounded_inputs=Fp8Linear.plain_rounds,
                        rounded_cache=isinstance(kwargs.get("past_key_values"), RoundedCache),
                        slots=[] if layers is None else layers.row_slots,
                    )
                )
            return run_base(*args, **kwargs)

        base.forward = forward
        if not isinstance(head, SplitHead):
            return
        run_head = head.forward

        def head_forward(x: torch.Tensor) -> torch.Tensor:
            if not self._stepping:
                x = x.contiguous()
                self.group.finish()
                self._announce(Head(tuple(x.shape)))
                self.group.broadcast(x)
            return run_head(x)

        head.forward = head_forward  # type: ignore[method-assign]

    # Everything below runs on the watching thread.

    def _watch(self) -> None:
        """Take replies, and look for a rank that has ended or does not go on."""
        while not self._closed.is_set():
            for connection in wait(self._connections, _LOOK_SECONDS):
                assert isinstance(connection, Connection)
                try:
                    self._replies.put(msgspec.msgpack.decode(connection.recv_bytes(), type=Reply))
                except (EOFError, OSError):
                    self._lose(f"rank {self._connections.index(connection) + 1} has ended")
                    return
            since = self._busy_since
            if since is not None and time.monotonic() - since > HANG_SECONDS:
                self._lose(f"a step has taken more than {HANG_SECONDS:.0f} s")
                return

    def _lose(self, failure: str) -> None:
        """End the engine: its thread by an error, else with the whole process."""
        if self._closed.is_set():
            return
        self._failure = failure
        logger.error("the model is lost: %s", failure)
        self._kill()
        self._replies.put(None)
        if self._wake is not None:
            self._wake()
        elif self._busy_since is None:
            return  # whoever loads the model waits for a reply
        threading.Thread(target=self.group.abort, daemon=True).start()  # it may hang
        self._ended.wait(_STOP_SECONDS)
        if not self._closed.wait(_STOP_SECONDS if self._wake is None else _ANSWER_SECONDS):
            shutil.rmtree(self._folder, ignore_errors=True)
            end_process()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _checked_plan(folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device) -> ShardPlan:
    """The plan of the shards; raises `EngineLoadError` if the model, the options or the machine do not go with it."""
    size = manifest.tensor_parallel_size
    about = f"the engine is built for {size} GPUs (--tp-size {size})"
    if not hasattr(continuous_batching.cache, "CachePool"):
        raise EngineLoadError(
            f"{about}, for which transformers {transformers.__version__} is too old: run `pip install --upgrade "
            "transformers`"
        )
    if options.runner == "dynamic_cache":
        raise EngineLoadError(f"{about}, on which there is no runner dynamic_cache: leave it to the engine")
    if device.type == "cuda" and device.index is not None:
        raise EngineLoadError(f"{about}, and device {device} is one: choose them by CUDA_VISIBLE_DEVICES")
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise EngineLoadError(
            f"{about}, and this process sees {torch.cuda.device_count()}: give it more (CUDA_VISIBLE_DEVICES, docker's "
            "--gpus), or build with a smaller --tp-size"
        )
    return plan_of(folder, size, trust_remote_code=manifest.trust_remote_code)


def _device(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", rank) if device.type == "cuda" else device


def _python() -> str:
    """The interpreter; where Python is embedded, as in Triton's stub, `sys.executable` may be another program."""
    running = Path(sys.executable or "/")
    return str(running if running.name.startswith("python") else Path(sys.prefix, "bin", "python3"))
