"""Process of a rank that only computes: ``python -m openai_bls.engines.embedded.tensor_parallel.follower``.

It does what rank 0's messages say, in their order, and ends with the pipe whose other end is rank 0's process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.engines.adapters import WEIGHTS_FILE, read_adapter
from openai_bls.engines.embedded import fp8_layers, model_loader
from openai_bls.engines.embedded.continuous_batching import ContinuousBatcher
from openai_bls.engines.embedded.lora_layers import LoraLayers, applied, layers_of
from openai_bls.engines.embedded.plain_pass import RoundedCache
from openai_bls.engines.embedded.prompt_forward import plain_attention
from openai_bls.engines.embedded.runner import BatchingConfig
from openai_bls.engines.embedded.runner_choice import RunnerChoice
from openai_bls.engines.embedded.tensor_parallel import steps
from openai_bls.engines.embedded.tensor_parallel.collectives import Collectives
from openai_bls.engines.embedded.tensor_parallel.messages import (
    Attend,
    Begin,
    Head,
    Join,
    Load,
    Message,
    Pass,
    Reply,
    Step,
    Stop,
    WriteAdapter,
)
from openai_bls.engines.embedded.tensor_parallel.plan import plan_of
from openai_bls.engines.embedded.tensor_parallel.shards import load_shard, widths

logger = logging.getLogger(__name__)


class Follower:
    """A rank that only computes."""

    follows = True

    def __init__(self, load: Load) -> None:
        """Load the shard; raises `EngineLoadError`."""
        self._options = load.options
        self._rank = load.rank
        self._device = torch.device(load.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(model_loader.threads(load.options, load.manifest.tensor_parallel_size))
        folder, manifest = Path(load.folder), load.manifest
        self._group = Collectives(manifest.tensor_parallel_size)
        plan = plan_of(folder, self._group.size, trust_remote_code=manifest.trust_remote_code)
        self._model = load_shard(folder, manifest, load.options, plan, self._rank, self._group, self._device)
        self._model.peers = self
        self._processor: Any = None
        if manifest.lora.max_loras:
            LoraLayers(self._model, manifest.lora.max_loras, manifest.lora.max_lora_rank)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def do(self, message: Message) -> Reply | None:
        """Do what rank 0 says; returns the reply if it wants one."""
        match message:
            case Step():
                self._step(message)
            case Pass():
                self._group.finish()
                cache = RoundedCache(config=self._model.config) if message.rounded_cache else None
                with (
                    plain_attention(self._model, message.attention),
                    fp8_layers.plain_products(rounded=message.rounded_inputs),
                    applied(self._model, message.slots),
                ):
                    ids = torch.tensor([message.token_ids], device=self._device)
                    self._model.base_model(input_ids=ids, past_key_values=cache, use_cache=message.rounded_cache)
                self._group.finish()
            case Head():
                hidden = torch.empty(message.shape, dtype=self._model.dtype, device=self._device)
                self._group.broadcast(hidden)
                self._model.get_output_embeddings()(hidden)
                self._group.finish()
            case Attend():
                problem = model_loader.set_attention(self._model, message.choice, self._options, message.loaded)
                return Reply(problem or "")
            case Begin():
                self._processor = None
                batcher = ContinuousBatcher(self._model, message.config, lambda: None, lambda _: None)
                self._processor = batcher.processor
                return Reply(sectors=int(self._processor.cache.num_sectors))
            case WriteAdapter():
                self._write_adapter(message.slot, Path(message.folder))
                return Reply()
            case Join():
                self._group.join(Path(message.store), self._rank, self._device, *widths(self._model))
                return Reply()
            case _:
                raise EngineLoadError(f"unexpected message {type(message).__name__}")
        return None

    def _write_adapter(self, slot: int, folder: Path) -> None:
        layers = layers_of(self._model)
        assert layers is not None
        layers.write(slot, read_adapter(folder), load_file(folder / WEIGHTS_FILE))

    def _step(self, step: Step) -> None:
        ios, runner = self._processor.inputs_and_outputs, self._processor.model_runner
        overlaps = isinstance(ios, ContinuousBatchingAsyncIOs)
        if overlaps:
            # The step before the last one: until then the GPU reads what is written now.
            ios.io_pairs[step.pair].compute_over.synchronize()
            ios.current_pair = step.pair
        steps.fill(ios.io_pairs[step.pair].host_io if overlaps else ios, step)
        layers = layers_of(self._model)
        if layers is not None:
            layers.follow(used=bool(step.adapters))
        runner.follow(self._model, ios.get_model_kwargs(use_padding=step.padded), step.longest)
        if overlaps:
            ios.compute_stream.record_event(ios.io_pairs[step.pair].compute_over)
        elif ios.compute_stream is not None:
            ios.compute_stream.synchronize()

    # What the model's code asks of `Peers`.

    @contextlib.contextmanager
    def attending(self, choice: RunnerChoice, loaded: str) -> Iterator[list[str]]:
        """See `Peers`."""
        with self._group.silence():
            yield []

    def begin(self, config: BatchingConfig, cache: Any) -> None:
        """See `Peers`."""

    def step(self, io: Any, pair: int, *, padded: bool, longest: int | None) -> contextlib.AbstractContextManager[None]:
        """See `Peers`."""
        return contextlib.nullcontext()

    def share(self, token_ids: torch.Tensor) -> None:
        """See `Peers`."""
        self._group.broadcast(token_ids)

    def silence(self) -> contextlib.AbstractContextManager[None]:
        """See `Peers`."""
        return self._group.silence()

    def write_adapter(self, slot: int, folder: Path) -> None:
        """See `Peers`."""


def main(arguments: list[str]) -> None:
    """Serve rank 0 until it says stop, or ends.

    Args:
        arguments: file descriptors of the socket to rank 0, and of the pipe that ends with it; rank 0's scratch folder.
    """
    # For who wants to know where it hangs.
    faulthandler.register(signal.SIGUSR1)
    # Of a terminal's Ctrl-C rank 0 decides what becomes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, lifeline = Connection(int(arguments[0])), int(arguments[1])
    threading.Thread(target=_end_with_rank_0, args=(lifeline, arguments[2]), daemon=True).start()
    try:
        _serve(connection)
    finally:
        shutil.rmtree(arguments[2], ignore_errors=True)


def _serve(connection: Connection) -> None:
    follower: Follower | None = None
    decoder = msgspec.msgpack.Decoder(Message)
    while True:
        try:
            message: Message = decoder.decode(connection.recv_bytes())
        except (EOFError, OSError):
            return  # rank 0 has ended
        if isinstance(message, Stop):
            os._exit(0)
        try:
            if isinstance(message, Load):
                follower, reply = Follower(message), Reply()
            else:
                assert follower is not None
                reply = follower.do(message)
        except Exception as error:
            if isinstance(message, Step | Pass | Head):
                raise
            logger.exception("rank 0's message %s could not be done", type(message).__name__)
            reply = Reply(first_line(error))
        if reply is not None:
            connection.send_bytes(msgspec.msgpack.encode(reply))


def _end_with_rank_0(lifeline: int, scratch: str) -> None:
    os.read(lifeline, 1)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
