"""Structured output by vLLM: grammars as its `StructuredOutputsParams`, for the backend `guidance` (llguidance).

Every grammar goes as Lark text in the field `grammar`, the text that the embedded engine compiles:

- vLLM's `json` and `regex` would lose `no_forcing`, without which llguidance allows one tokenization only where one
  text fits. White space and additional properties are in the schema (`x-guidance`), out of reach of vLLM's
  `disable_any_whitespace` and `disable_additional_properties`.
- The first line makes vLLM take the text for Lark, whatever a client's grammar looks like.
- vLLM's mask has one end token, the tokenizer's. The request's other stop tokens end the grammar as tokens of their own
  (`<[7]>`), so each is allowed where the grammar may end, and nowhere else.

Other backends are not used: xgrammar leaves keywords out (see `output.structured.schemas.keywords`), outlines and
lm-format-enforcer have no exact answer here.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from openai_bls.core.engine_types import GenerationRequest, Grammar
from openai_bls.output.structured.grammars.gbnf import slashed

CONFIG: Mapping[str, Any] = {"backend": "guidance"}
"""Fields of vLLM's `StructuredOutputsConfig`. It has no reasoning parser: the grammar has the thoughts in it."""

LLGUIDANCE = ("1.7", "1.9")
"""Releases of llguidance, by their first two numbers, whose masks were compared with the embedded engine's."""

END_BIAS = -10_000.0
"""`logit_bias` of an end token that the request does not stop at: sampled only where the grammar allows nothing
else."""

_HEAD = '%llguidance {"no_forcing": true}\n'


def installed_llguidance() -> str | None:
    """The version of llguidance in this interpreter; None without one."""
    try:
        return importlib.metadata.version("llguidance")
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not(llguidance: str | None) -> str:
    """A sentence for the log where grammars are not known to be exact; empty where they are.

    Args:
        llguidance: version of llguidance beside vLLM, e.g. `1.7.6`; None is none.
    """
    if llguidance is None:
        return "structured output is refused: llguidance is not installed beside vLLM"
    if llguidance.startswith(tuple(f"{release}." for release in LLGUIDANCE)):
        return ""
    tried = " and ".join(LLGUIDANCE)
    return f"structured output is refused: llguidance {llguidance} was not tried with vLLM, only {tried} were"


def lark(grammar: Grammar, stop_token_ids: Collection[int] = ()) -> str:
    """The field `grammar` of vLLM's `StructuredOutputsParams`: the Lark text of a grammar, stop tokens behind it.

    Args:
        grammar: grammar of one of the kinds in `guidance.KINDS`.
        stop_token_ids: the request's stop tokens in the model's vocabulary, without the tokenizer's own end token.
    """
    match grammar.kind:
        case "json_schema":
            body = f"%json {grammar.text}"
        case "regex":
            body = slashed(grammar.text)
        case _ if not stop_token_ids:
            return _HEAD + grammar.text
        case _:
            body = f"%lark {{\n{grammar.text}\n}}"
    if not stop_token_ids:
        return f"{_HEAD}start: {body}"
    stops = ",".join(map(str, sorted(stop_token_ids)))
    return f"{_HEAD}start: output <[{stops}]>?\noutput: {body}"


def sampling(request: GenerationRequest, eos_token_id: int | None) -> dict[str, Any]:
    """Fields of vLLM's `SamplingParams` that a request with a grammar needs.

    vLLM allows the tokenizer's end token wherever the grammar may end, and nothing but it at its end, so it must end
    the sequence. Where the request does not stop at it, it is sampled only if nothing else is allowed.

    Args:
        request: request with a grammar.
        eos_token_id: id of the tokenizer's end token; None where it has none.

    Returns:
        `stop_token_ids`, and `logit_bias` where it differs from the request's.
    """
    stops = list(request.stop_token_ids)
    if eos_token_id is None or eos_token_id in stops:
        return {"stop_token_ids": stops}
    bias = {**request.sampling.logit_bias, eos_token_id: END_BIAS}
    return {"stop_token_ids": [*stops, eos_token_id], "logit_bias": bias}


def end_tokens(stop_token_ids: Sequence[int], eos_token_id: int | None, vocab_size: int) -> list[int]:
    """The stop tokens that `lark` gets: in the vocabulary, each once, without the tokenizer's end token."""
    return sorted({one for one in stop_token_ids if 0 <= one < vocab_size and one != eos_token_id})
