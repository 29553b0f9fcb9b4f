"""`tensorrt_llm.models`: which architectures engines are built of."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._build import ARCHITECTURES


class _Decoder:
    @classmethod
    def from_hugging_face(cls, *_: Any, **__: Any) -> None:
        raise NotImplementedError


class _Encoder:
    """Converted by a script of its own."""


MODEL_MAP: dict[str, type] = dict.fromkeys(sorted(ARCHITECTURES), _Decoder) | {"WhisperEncoder": _Encoder}
