"""A Triton model that hears what the test says, and forms for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from openai_bls.pipeline.media.audio.decoder import AudioDecoder
from openai_bls.transport.model_calls import Array
from tests.sounds import silence
from tests.unit.api.http_support import asked
from tests.unit.core_support import Answered, Bench
from tests.unit.pipeline.task_models.task_support import model, tensor

PATH = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
SECOND = silence(1)
FP32 = "TYPE_FP32"
AUDIO = [tensor("audio", FP32, [-1])]
INPUTS = [
    *AUDIO,
    *(tensor(name) for name in ("language", "prompt", "task")),
    tensor("temperature", FP32),
]
SEGMENTS = [
    tensor("text"),
    *(tensor(name, FP32, [-1]) for name in ("segment_start", "segment_end")),
    tensor("segment_text", dims=[-1]),
]
WORDS = [*(tensor(name, FP32, [-1]) for name in ("word_start", "word_end")), tensor("word", dims=[-1])]
COUNTS = [tensor("prompt_tokens", "TYPE_INT32"), tensor("completion_tokens", "TYPE_INT64")]
LANGUAGE = [tensor("language")]
Says = Callable[[Mapping[str, Array]], Any]


def texts(*values: str) -> Array:
    return np.array([value.encode() for value in values], object)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def said(text: str, segments: Sequence[tuple[float, float, str]] = (), **more: Array) -> dict[str, Array]:
    """A response of a model with segments."""
    return {
        "text": texts(text),
        "segment_start": floats(*(start for start, _, _ in segments)),
        "segment_end": floats(*(end for _, end, _ in segments)),
        "segment_text": texts(*(text for _, _, text in segments)),
        **more,
    }


@cache
def decoder() -> AudioDecoder:
    """Decoder of all benches with default settings: the start of a process takes longer than all that it decodes."""
    return Bench().service.audio.decoder


def bench_of(
    whole: Mapping[str, Array] | Says, pieces: Says | None = None, *, bench: Bench | None = None, **changes: Any
) -> Bench:
    """A service with a model that hears, one that streams if `pieces` are given."""
    if bench is None:
        bench = Bench()
        bench.service.audio.decoder = decoder()
    decoupled = {"model_transaction_policy": {"decoupled": True}} if pieces is not None else {}
    changes = {"max_batch_size": 0, "output": SEGMENTS, **decoupled, **changes}
    bench.service.models.tasks.replace([model("transcription", "ear", **changes)])

    def answer(inputs: Mapping[str, Array]) -> Any:
        return whole(inputs) if callable(whole) else whole

    bench.model_calls.models["ear"] = answer
    if pieces is not None:
        bench.model_calls.streams["ear"] = pieces
    return bench


def form(file: bytes | None = SECOND, fields: Sequence[tuple[str, str]] = (), boundary: str = "b0") -> bytes:
    """A form, field by field."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    if file is not None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        parts.append(head.encode() + file + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def headers(boundary: str = "b0") -> list[tuple[str, str]]:
    return [("content-type", f"multipart/form-data; boundary={boundary}")]


def heard(bench: Bench, file: bytes | None = SECOND, path: str = PATH, **fields: Any) -> Answered:
    """The answer to a form; values that are lists are fields of one name."""
    pairs = [
        (name, one) for name, value in fields.items() for one in (value if isinstance(value, list) else [str(value)])
    ]
    return asked(bench, path, form(file, pairs), headers=headers())


def refusal(answer: Answered) -> tuple[int, str | None, str | None]:
    """Status, field and code."""
    error = answer.json()["error"]
    return answer.status, error["param"], error["code"]
