"""Speculative decoding in the PyTorch flow: how it samples, and what it does not go with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from openai_bls_tensorrt_llm.installed.interface import GuidedDecodingBackend, Version
from openai_bls_tensorrt_llm.installed.llm_args import OPTION, SPECULATION, draft_key

_NON_GREEDY_SINCE = Version(1, 2)
_SAMPLES_SINCE = Version(1, 4)
"""Drafters that are part of the model sample without `allow_advanced_sampling`, which does nothing any more."""
_GUIDED_SINCE = {False: Version(1, 1), True: Version(1, 2)}
"""Whether drafter and model are one engine → first version that holds their outputs to a grammar: the matrices
features/feature-combination-matrix.md of 1.1.0, and `create_py_executor` of 1.0 and 1.2."""
FIELDS = frozenset({"temperature", "top_p", "top_k", "stop_token_ids"})
"""Fields of requests that are honoured while it drafts, as far as the sources show. A drafter that is part of the model
takes a seed (pull request 17599), but FlashInfer draws a batch by that of its first row."""


class Speculation(msgspec.Struct, frozen=True):
    """Speculative decoding as it was asked for."""

    decoding_type: str
    one_engine: bool
    """The drafter is part of the model (`SpeculativeDecodingMode.use_one_engine`), and samples in its place."""
    greedy: bool
    """Every output is greedy, whatever a request asks for."""
    draft_model: Path | None
    guided: bool
    """Outputs can be held to a grammar."""


def speculation(values: Mapping[str, Any], version: Version) -> Speculation | None:
    """Speculative decoding in arguments that were read; None without."""
    config = values.get(SPECULATION)
    if not config:
        return None
    kind = config["decoding_type"]
    one = kind == "MTP" or (kind.startswith("Eagle") and config.get("eagle3_one_model", True))
    # 1.3 drafts inside the engine for it too.
    one = one or (kind == "DraftTarget" and version >= Version(1, 3))
    asked = config.get("allow_advanced_sampling", False)
    draft = config.get(draft_key(config))
    return Speculation(
        decoding_type=kind,
        one_engine=one,
        greedy=version < _NON_GREEDY_SINCE or (one and not asked and version < _SAMPLES_SINCE),
        draft_model=Path(draft) if draft else None,
        guided=version >= _GUIDED_SINCE[one],
    )


def refusals(
    values: Mapping[str, Any],
    version: Version,
    *,
    pipeline_parallel_size: int = 1,
    max_beam_width: int = 1,
    adapters: bool = False,
    grammars: GuidedDecodingBackend = "",
) -> Iterator[str]:
    """Refusals of arguments that were read, beside the other options of the engine."""
    asked = speculation(values, version)
    if asked is None:
        return
    about = f"speculative_config in {OPTION} ({asked.decoding_type})"
    if asked.draft_model is not None and not (asked.draft_model / "config.json").is_file():
        yield f"{about}: there is no draft model at {asked.draft_model} (a directory with config.json is needed)"
    if pipeline_parallel_size > 1:
        yield f"{about} does not go with --pp-size: TensorRT-LLM drafts in one stage only; give --tp-size instead"
    if max_beam_width > 1:
        yield f"{about} does not go with --max-beam-width: TensorRT-LLM drafts one sequence per request"
    if adapters:
        yield f"{about} does not go with --lora-dir: TensorRT-LLM has not tested the two together"
    if grammars and not asked.guided:
        since = _GUIDED_SINCE[asked.one_engine]
        yield (
            f"{about} does not go with --guided-decoding-backend in TensorRT-LLM {version}: it holds such outputs to "
            f"grammars from {since.major}.{since.minor} on; leave one of the two out"
        )


def notes(values: Mapping[str, Any], version: Version) -> Iterator[str]:
    """Consequences for requests, a sentence each."""
    asked = speculation(values, version)
    if asked is None:
        return
    yield (
        "with speculative_config, requests with penalties, logit_bias, bad_words, min_p, min_tokens, seed or logprobs "
        "are refused: it is not known that TensorRT-LLM honours them while it drafts"
    )
    if asked.draft_model is not None:
        yield "the estimate leaves the draft model out: its weights and KV cache need memory beside the model's"
    if asked.greedy:
        hint = "; allow_advanced_sampling: true lets them sample" if version >= _NON_GREEDY_SINCE else ""
        yield f"{asked.decoding_type} of TensorRT-LLM {version} decodes greedily: requests need temperature 0{hint}"
