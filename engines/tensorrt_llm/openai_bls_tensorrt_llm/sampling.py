"""Requests of ours in the terms of TensorRT-LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls_tensorrt_llm.installed.interface import Sampling


def grammar_end(tokenizer_dir: Path) -> int | None:
    """The token that ends a grammar: the `eos_token` of tokenizer_config.json, whatever end token a request has.

    TensorRT-LLM's LLM API hands that one to the grammar library (tokenizer.eos_token_id), which takes any other end
    token for ordinary text. None if the files do not tell.
    """
    try:
        config: Any = msgspec.json.decode((tokenizer_dir / "tokenizer_config.json").read_bytes())
        tokenizer: Any = msgspec.json.decode((tokenizer_dir / "tokenizer.json").read_bytes())
        eos = config["eos_token"]
        text = eos["content"] if isinstance(eos, dict) else eos
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}
        known = {**(vocabulary if isinstance(vocabulary := tokenizer["model"]["vocab"], dict) else {}), **added}
        number = known.get(text)
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


def end_token(request: GenerationRequest, info: EngineInfo, grammar_end_id: int | None = None) -> int | None:
    """TensorRT-LLM's `end_id`, one of a request's stop tokens; None if there are none.

    The others go with it as stop tokens, but only the end token is held back by `min_tokens`.

    Args:
        request: the request.
        info: facts of the engine.
        grammar_end_id: the token that ends a grammar.
    """
    stops = request.stop_token_ids
    if request.grammar is not None and grammar_end_id in stops:
        return grammar_end_id
    return next((token for token in info.eos_token_ids if token in stops), next(iter(stops), None))


def sampling(
    request: GenerationRequest, info: EngineInfo, end_id: int | None, grammar_end_id: int | None = None
) -> Sampling:
    """Sampling parameters for TensorRT-LLM; `stop_words` are left to `deltas`."""
    stops = [token for token in dict.fromkeys(request.stop_token_ids) if token != end_id]
    bad_words = request.bad_words
    if request.grammar is not None and end_id == grammar_end_id is not None:
        # In the middle of a string, say, the grammar would allow them as text, and the output would end there.
        bad_words += tuple((token,) for token in stops if token in info.eos_token_ids)
        stops = [token for token in stops if token not in info.eos_token_ids]
    return Sampling(
        max_tokens=request.max_tokens,
        end_id=end_id,
        pad_id=end_id if info.pad_token_id is None else info.pad_token_id,
        stop_token_ids=tuple(stops),
        bad_words=bad_words,
        min_tokens=request.min_tokens,
        params=request.sampling,
        vocab_size=info.vocab_size,
        logprobs=request.logprobs,
        grammar=request.grammar,
    )
