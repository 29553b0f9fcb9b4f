"""Model `postprocessing` without Triton: token ids in, text out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detokenizer import factory
from openai_bls.triton_models.tensors.arrays import Arrays
from openai_bls.triton_models.tensors.models import PASSED_ON


class Postprocessing:
    """Text for the official tensors.

    Each request is decoded as a whole, unless DECODE_CONTEXT says what came before it in a stream: then the text is
    what this piece adds, so that characters which several responses share come out whole.

    Args:
        tokenizer_dir: folder with tokenizer.json.
    """

    def __init__(self, tokenizer_dir: Path) -> None:
        self._factory = factory.load(tokenizer_dir)

    def probe(self) -> None:
        """Decode a token."""
        self._factory.decode_chunk([], [0], True, True)

    def __call__(self, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """`OUTPUT`, BYTES of shape [batch * beams], flat as the official one, which clients go through item by item;
        tensors of `PASSED_ON`, where they are given, as they are.

        Args:
            arrays: TOKENS_BATCH [batch, beams, length]; optionally SEQUENCE_LENGTH [batch, beams], DECODE_CONTEXT
                [batch, n] padded with -1, DECODE_FINAL [batch, 1] and SKIP_SPECIAL_TOKENS [batch, 1].

        Raises:
            InvalidRequestError: no TOKENS_BATCH, or shapes that do not fit each other.
        """
        if "TOKENS_BATCH" not in arrays:
            raise InvalidRequestError("'TOKENS_BATCH' is missing.", param="TOKENS_BATCH")
        tokens = arrays["TOKENS_BATCH"]
        if tokens.ndim != 3:
            raise InvalidRequestError("'TOKENS_BATCH' must have shape [batch, beams, length].", param="TOKENS_BATCH")
        batch, beams, length = tokens.shape
        lengths = arrays.get("SEQUENCE_LENGTH", np.full((batch, beams), length))
        if lengths.size != batch * beams or np.any(lengths > length) or np.any(lengths < 0):
            raise InvalidRequestError(
                f"'SEQUENCE_LENGTH' of shape {list(lengths.shape)} does not fit 'TOKENS_BATCH' of "
                f"shape {list(tokens.shape)}.",
                param="SEQUENCE_LENGTH",
            )
        lengths = lengths.reshape(batch, beams)
        texts = np.empty((batch, beams), dtype=np.object_)
        for row in range(batch):
            context = [t for t in _row(arrays, "DECODE_CONTEXT", row, []) if t >= 0]
            (final,) = _row(arrays, "DECODE_FINAL", row, [True])
            (skip_special,) = _row(arrays, "SKIP_SPECIAL_TOKENS", row, [True])
            for beam in range(beams):
                new = [t for t in tokens[row, beam, : lengths[row, beam]].tolist() if t >= 0]
                text = self._factory.decode_chunk(context, new, final, skip_special)
                texts[row, beam] = text.encode()
        passed_on = {f"OUT_{name}": arrays[name] for name in PASSED_ON if name in arrays}
        return {"OUTPUT": texts.reshape(-1), **passed_on}


def _row(arrays: Arrays, name: str, row: int, default: list[Any]) -> list[Any]:
    if name not in arrays:
        return default
    values: list[Any] = arrays[name][row].reshape(-1).tolist()
    return values
