"""The messages that travel between the models: one frozen dataclass per hop.

All are msgspec structs, so the same class is the Python value, the validation and the wire format (MessagePack).

===========================  ======================================  ==================================================
hop                          message                                 carried by
===========================  ======================================  ==================================================
openai_bls → preprocessing   `PromptRequest`                         a frame of `exchange.prompts` for each request
preprocessing → openai_bls   `PromptResult`                          likewise
openai_bls → tensorrt_llm    `GenerationRequest`, cancelled ids      a frame of `exchange`, for all that come together
tensorrt_llm → openai_bls    `TokenDelta`                            a frame for all requests, once a step
===========================  ======================================  ==================================================
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

EngineFinishReason = Literal["stop", "length", "cancelled", "error"]


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the next token is drawn. The defaults sample from the model's own distribution.

    Applied in this order: temperature, top_k, top_p, min_p.
    """

    temperature: float = 1.0
    """0 is greedy, whatever else is set."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 is off."""
    top_k: int = 0
    """Highest-ranked tokens kept; 0 is off."""
    min_p: float = 0.0
    """Least probability, as a share of the likeliest token's, in [0, 1]; 0 is off."""
    seed: int | None = None
    """Unsigned 64-bit. The same seed, prompt and parameters give the same tokens, whatever else is in the batch."""


class GenerationRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One sequence for an engine to generate."""

    request_id: int
    """Unique among this engine's live requests; chosen by the caller."""
    prompt_token_ids: list[int]
    """Shape [prompt length], at least one token."""
    max_tokens: int
    """The most new tokens to sample, at least 1; prompt length + max_tokens fits `EngineInfo.max_model_len`."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends the sequence; the token itself is not delivered."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end the output; their tokens are delivered (the official contract's meaning)."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences never generated."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one engine step brought to one request."""

    request_id: int
    token_ids: list[int]
    """The new tokens only, without the stop token."""
    finish_reason: EngineFinishReason | None = None
    """None while the sequence goes on. After any other value no further delta comes for this request."""
    stop_token_id: int | None = None
    """The token that ended the sequence, if one did. It was sampled, hence it counts in usage."""
    error: str | None = None
    """Fit for a client's eyes; set if and only if `finish_reason` is "error"."""
    invalid: bool = False
    """The error is the request's fault (400), not the engine's (500)."""


class EngineInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine is and can do; constant while it is loaded."""

    engine: str
    """`transformers`, `tensorrt_llm` or `null`."""
    model_name: str
    """The name under which the checkpoint is served, e.g. `Qwen2.5-7B-Instruct`."""
    max_model_len: int
    """The most tokens of prompt and output together."""
    max_batch_size: int
    """Sequences in flight at the same time; further ones wait in the engine's queue."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    """Empty if the model has none."""
    pad_token_id: int | None = None
    sampling_defaults: SamplingParams = SamplingParams()
    """From the checkpoint's generation_config.json."""
    supported: tuple[str, ...] = ()
    """Names of the `SamplingParams` and `GenerationRequest` fields this engine honours."""
    version: str = ""
    """Of the engine's own software, e.g. `transformers 5.23.0`."""
    created: int = 0
    """Unix seconds at which the engine was built."""


class PromptRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What preprocessing shall turn into token ids: a conversation, or raw prompts."""

    messages: list[dict[str, Any]] | None = None
    """OpenAI messages as the chat template sees them (content a string, tool arguments parsed)."""
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    prompts: list[str] | None = None
    """Raw text, tokenized as it stands, one result each."""


class PromptResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token ids for a `PromptRequest`, or why there are none."""

    prompt_token_ids: list[list[int]] = []
    """One list for a conversation, else one for each prompt."""
    error: str | None = None
    """Fit for a client's eyes."""
    param: str | None = None
