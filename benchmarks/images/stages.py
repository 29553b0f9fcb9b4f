"""Cost of an image by stages: `python -m benchmarks.images.stages`.

Prints a table in Markdown, in milliseconds of CPU time, the best of all rounds, of each stage by itself: base64 lifted
out of the body, decoding in a process apart, the hash that is a part of it, the exchange, the model's processor and its
vision tower. That a request without images costs the same whether its model takes images or not is a unit test.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import io
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import torch
from PIL import Image as PillowImage
from transformers import AutoModelForImageTextToText

from benchmarks.support import ROOT
from benchmarks.support.options import positive
from benchmarks.support.report import markdown_table
from openai_bls.api.common.lifted import lifted
from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.pipeline.media.decoder import Decoder, Encoded
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.transport.ipc.sockets import address

_SIZES = ((48, 48), (1024, 768))
_MAX_PIXELS = 16 << 20
_REPEATS = 10
"""Times in a row that a stage is run, since the system counts CPU time in hundredths of a second."""
_STAGES = ("file, KB", "lift base64", "decode", "of which SHA-256", "exchange", "processor", "tower")


def photograph(width: int, height: int) -> bytes:
    """JPEG of shapes and noise, which is as large as one of a camera."""
    noise = PillowImage.frombytes("RGB", (width, height), random.Random(1).randbytes(3 * width * height))
    ramp = PillowImage.linear_gradient("L").resize((width, height)).convert("RGB")
    file = io.BytesIO()
    PillowImage.blend(ramp, noise, 0.15).save(file, "JPEG", quality=90)
    return file.getvalue()


def best_ms(rounds: int, work: Callable[[], object], decoder: Decoder | None = None) -> float:
    """Milliseconds of CPU time of `work`, of all threads, and of the processes of `decoder`."""

    def used() -> float:
        times = [psutil.Process(pid).cpu_times() for pid in (decoder.pids if decoder is not None else ())]
        return time.process_time() + float(sum(one.user + one.system for one in times))

    work()
    taken = []
    for _ in range(rounds):
        begun = used()
        for _ in range(_REPEATS):
            work()
        taken.append((used() - begun) / _REPEATS)
    return min(taken) * 1e3


class _Sink:
    """An engine that takes requests and does nothing with them."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.came = threading.Event()

    def submit(self, request: GenerationRequest) -> None:
        self.came.set()

    def cancel(self, request_id: int) -> None:
        """Nothing runs."""


def exchange_ms(rounds: int, image: Image) -> float:
    """Milliseconds of CPU time, at both ends, of a request with an image from its submission to the engine."""

    async def main() -> float:
        place = address("benchmark", threading.get_native_id())
        server = ExchangeServer(place)
        engine: Any = _Sink(EngineInfo("null", "m", 8, 1, 8, ()))
        server.start(engine)
        there = asyncio.Event()
        client = ExchangeClient(place, lambda _: there.set())
        await there.wait()
        taken = []
        for _ in range(rounds):
            media = MediaPrompt((image,), "", ())
            engine.came.clear()
            begun = time.process_time()
            client.submit(GenerationRequest(client.new_request_id(), [1], 1, media=media), lambda _: None)
            await asyncio.to_thread(engine.came.wait)
            taken.append(time.process_time() - begun)
        await client.close()
        await asyncio.to_thread(server.close)
        return min(taken) * 1e3

    return asyncio.run(main())


def stages(rounds: int, checkpoint: Path, width: int, height: int) -> dict[str, float]:
    """Milliseconds of each stage of an image of that size."""
    file = photograph(width, height)
    text = base64.b64encode(file).decode()
    body = msgspec.json.encode({"messages": [{"content": [{"image_url": {"url": f"data:image/jpeg;base64,{text}"}}]}]})
    decoder = Decoder(_MAX_PIXELS, _MAX_PIXELS)
    encoded = Encoded(f"data:,{text}", _MAX_PIXELS, len("data:,"))
    loop = asyncio.new_event_loop()

    def decode() -> Image:
        return loop.run_until_complete(decoder.decode(encoded, lambda _: None))

    image = decode()
    processor = VisionProcessor(checkpoint)
    model: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = f"{processor.image_token} What is in the picture?"
    pixels = processor.inputs(prompt, (image,))["pixel_values"]

    def tower() -> None:
        with torch.inference_mode():
            model.get_image_features(pixel_values=pixels)

    found = {
        "file, KB": len(file) / 1024,
        "lift base64": best_ms(rounds, lambda: lifted(body)),
        "decode": best_ms(rounds, decode, decoder),
        "of which SHA-256": best_ms(rounds, lambda: hashlib.sha256(image.pixels).digest()),
        "exchange": exchange_ms(rounds, image),
        "processor": best_ms(rounds, lambda: processor.inputs(prompt, (image,))),
        "tower": best_ms(rounds, tower),
    }
    decoder.close()
    loop.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images.stages", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "demo" / "vision-checkpoint", help="one that sees")
    parser.add_argument("--rounds", type=positive, default=9, help="of each figure (9)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    measured = {f"{w} x {h}": stages(options.rounds, options.checkpoint, w, h) for w, h in _SIZES}
    rows = [[size, *(f"{found[stage]:.2f}" for stage in _STAGES)] for size, found in measured.items()]
    print(markdown_table(["image", *_STAGES], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
