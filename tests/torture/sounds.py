"""Audio under torture: a model that hears, next to the others, and files of any length."""

from __future__ import annotations

import functools
import io
import shutil
from pathlib import Path
from typing import Any

import av

from tests.sounds import ENCODERS

HEARS = "plain"
"""Model that hears. By this name it tells no more than the words."""
RATE = 16_000
"""Samples per second that it takes."""
MOST_SECONDS = 1500
"""`max_audio_seconds`."""
_MODEL = Path(__file__).parents[1] / "triton" / "models" / "hearing_models" / "model.py"
_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "audio" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "openai_task" value { string_value: "transcription" } }
"""


def add_hearing(repository: Path) -> None:
    """Add the model `HEARS` to a repository."""
    version = repository / HEARS / "1"
    version.mkdir(parents=True)
    shutil.copy(_MODEL, version)
    (version.parent / "config.pbtxt").write_text(_CONFIG, encoding="utf-8")


@functools.cache
def silent_file(form: str, seconds: int, rate: int, layout: str) -> bytes:
    """A file of silence, which is small whatever its length.

    Args:
        form: ending of the file, one of `ENCODERS`.
        seconds: length.
        rate: samples per second.
        layout: FFmpeg's name of the channels.
    """
    file = io.BytesIO()
    container_format, codec = ENCODERS[form]
    with av.open(file, "w", format=container_format) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout=layout)
        size = stream.codec_context.frame_size or rate
        frame = av.AudioFrame(stream.format.name, layout, size)
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        frame.sample_rate = rate
        for at in range(0, seconds * rate, size):
            frame.pts = at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
