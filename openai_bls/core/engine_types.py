"""Messages between the Triton models: one frozen struct per hop.

All are msgspec structs, so the same class is the Python value, the validation and the wire format (MessagePack).

===========================  ======================================  ==================================================
hop                          message                                 carried by
===========================  ======================================  ==================================================
openai_bls → preprocessing   `PromptRequest`                         a frame of `transport.ipc.prompts` per request
preprocessing → openai_bls   `PromptResult`                          the same
openai_bls → tensorrt_llm    `GenerationRequest`, cancelled ids      a frame of `transport.ipc` for all of a moment
tensorrt_llm → openai_bls    `TokenDelta`                            a frame per step, for all requests
===========================  ======================================  ==================================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from openai_bls.core.media import MediaPrompt, Modality

EngineFinishReason = Literal["stop", "length", "cancelled", "error"]
EngineTask = Literal["generate", "embeddings", "score", "classify", "reward"]
"""What an engine does: it generates, or it pools each prompt into numbers."""


class Range(NamedTuple):
    """Numbers that a parameter, or each value of a mapping, may be. The engines check it, no decoder."""

    least: float
    most: float = sys.float_info.max
    above: bool = False
    """`least` itself is outside."""

    def first_outside(self, values: Iterable[float]) -> float | None:
        """The first value that is outside, as NaN and the infinities are; None if none is."""
        least, most, above = self
        return next((value for value in values if not least <= value <= most or (above and value == least)), None)

    def __str__(self) -> str:
        most = "" if self.most == sys.float_info.max else f" up to {self.most}"
        return f"a number {'above' if self.above else 'from'} {self.least}{most}"


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters. The defaults sample from the model's own distribution.

    Applied in this order: logit_bias, repetition, presence and frequency penalty, temperature, top_k, top_p, min_p.
    """

    temperature: Annotated[float, Range(0)] = 1.0
    """0 is greedy, whatever else is set."""
    top_p: Annotated[float, Range(0, 1, above=True)] = 1.0
    """Nucleus mass; 1 is off."""
    top_k: Annotated[int, Range(0)] = 0
    """Highest-ranked tokens kept; 0 is off."""
    min_p: Annotated[float, Range(0, 1)] = 0.0
    """Least probability, as a share of the likeliest token's; 0 is off."""
    seed: Annotated[int | None, Range(0, 2**64 - 1)] = None
    """The same seed, prompt and parameters give the same tokens, whatever else is in the batch."""
    repetition_penalty: Annotated[float, Range(0, above=True)] = 1.0
    """Scores of tokens in the prompt or the output are divided (positive ones) or multiplied
    (negative ones) by it; 1 is off."""
    presence_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Subtracted from the scores of tokens in the output; 0 is off."""
    frequency_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Subtracted from the score once per occurrence of the token in the output; 0 is off."""
    logit_bias: Annotated[dict[int, float], Range(-100, 100)] = {}
    """Token id → bias added to its score: -100 is never, 100 nothing else. A grammar takes precedence: where every
    token that it allows has -100, one of them is sampled."""


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Grammar that the whole output must match. Made by `openai_bls.output.structured`."""

    kind: Literal["json_schema", "regex", "ebnf", "structural_tag", "lark"]
    """`ebnf` and `structural_tag` are xgrammar's forms, in TensorRT-LLM only; `lark` is llguidance's."""
    text: str
    """JSON text for `json_schema` and `structural_tag`."""


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of a run of tokens under the model's own distribution: before any bias, penalty, temperature,
    filter or grammar. Natural logarithms."""

    token_logprobs: list[float]
    """Shape [n]: of the tokens themselves."""
    top_token_ids: list[list[int]]
    """Shape [n, k]: the likeliest tokens at each place, the likeliest first; the token itself may not be among them."""
    top_logprobs: list[list[float]]
    """Shape [n, k]: theirs."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of the tokens of a prompt from its second token on (the first has no context), as in
    `Logprobs`. Packed, since a long prompt has millions: `core.logprobs` packs and reads them."""

    top: int
    """k: likeliest tokens at each place."""
    blocks: list[bytes]
    """Rows of some tokens each. A row is 1 + 2k numbers of 4 bytes: the token's own log-probability (float32), the ids
    (int32) of the likeliest tokens and theirs (float32)."""


class GenerationRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One sequence for an engine to generate."""

    request_id: int
    """Unique among this engine's live requests; chosen by the caller."""
    prompt_token_ids: list[int]
    """Shape [prompt length], at least one token."""
    max_tokens: int
    """Maximum of new tokens; prompt length + max_tokens fits `EngineInfo.max_model_len`. With 0 nothing is
    sampled: the one delta has finish_reason "length" (and what was asked of the prompt)."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the sequence; the token itself is not delivered."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end the output; their tokens are delivered (as in the official backend)."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences not generated. Where they leave nothing of what a grammar allows, the grammar is followed."""
    allowed_token_ids: tuple[int, ...] = ()
    """Tokens that may be sampled, stop tokens too; empty is all."""
    min_tokens: int = 0
    """Tokens before which no stop token is sampled and no stop word ends the output, at most `max_tokens`. A
    grammar is followed all the same: the sequence ends where nothing else may follow in it."""
    logprobs: int | None = None
    """Send `TokenDelta.logprobs` with this many likeliest tokens per position, at most `EngineInfo.max_logprobs`; 0
    sends the sampled tokens' own; None sends none."""
    prompt_logprobs: int | None = None
    """Number of likeliest tokens per position of the prompt, which the first delta brings; None sends none."""
    grammar: Grammar | None = None
    """A stop token may be sampled only where the grammar may end; where nothing else may follow the sequence ends by
    itself with finish_reason "stop"."""
    lora_name: str | None = None
    """LoRA adapter, one of `EngineInfo.lora_names`."""
    prediction: tuple[int, ...] = ()
    """Tokens that the output is likely to be. The output does not depend on them, but comes sooner where they are
    right."""
    pooling: Literal["last", "mean", "embed", "classify"] | None = None
    """Do not generate: answer with `TokenDelta.embedding`. `max_tokens` is 0 then. `last` and `mean` are for an engine
    that generates: the last hidden state of the last token or the mean of all, scaled to length 1. `embed` is the
    vector of a model that embeds, as it pools; `classify` the scores of one that classifies, scores or rewards."""
    dimensions: int | None = None
    """Size to which the vector is cut, of a model that says that its vectors may be."""
    use_activation: bool | None = None
    """Whether the scores of `classify` go through the model's softmax or sigmoid; None is as the model was made to."""
    compressed_token_type_ids: int | None = None
    """First place of the prompt that belongs to the second text of a pair, for models with token types."""
    media: MediaPrompt | None = None
    """Images of the prompt; None if it is text alone."""
    priority: int = 0
    """Place in the queue of an engine that has one by priority: the lower, the earlier."""
    kv_transfer_params: dict[str, Any] | None = None
    """What a connector that moves KV caches between engines is to do for the request, in the connector's own terms."""
    owner: str = ""
    """Name of the API key of a request with a grammar or images: both are prepared in turn by owner, and each owner has
    its own grammars."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """New tokens of one request from one engine step."""

    request_id: int
    token_ids: list[int]
    """The new tokens only, without the stop token."""
    finish_reason: EngineFinishReason | None = None
    """None while the sequence goes on. After any other value no further delta comes for this request."""
    stop_token_id: int | None = None
    """The token that ended the sequence, if one did. It was sampled, hence it counts in usage."""
    error: str | None = None
    """Message for the client; set if and only if `finish_reason` is "error"."""
    invalid: bool = False
    """The error is the request's fault (400), not the engine's (500)."""
    logprobs: Logprobs | None = None
    """Log-probabilities of `token_ids`, one for one; in every delta with tokens if requested."""
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt, in the first delta."""
    cached_tokens: int = 0
    """Prompt tokens found in the KV cache, in the request's first delta."""
    embedding: list[float] | None = None
    """The numbers of a request with `pooling`, in its only delta, whose finish_reason is "stop"."""
    queue_s: float | None = None
    """Seconds that the request waited in the engine for a place in its batch, in the request's first delta; None where
    the engine does not tell."""
    predicted_tokens: int = 0
    """Number of `token_ids` that the request's `prediction` has in their place."""
    kv_transfer_params: dict[str, Any] | None = None
    """What another engine needs to take the request's KV cache, in the connector's own terms; in the last delta."""
    num_draft_tokens: int = 0
    """Tokens that the engine drafted for the request, in the last delta; 0 where it does not tell."""
    num_accepted_tokens: int = 0
    """Number of them that the sequence has."""


class LoraUpdate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An adapter to load or unload."""

    update_id: int
    """Chosen by the sender, for the answer."""
    name: str
    path: str = ""
    """Folder of the adapter; empty unloads it."""


class UpdateResult(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a `LoraUpdate`, or to a reset of the prefix cache."""

    update_id: int
    error: str | None
    """Message for the client, if it could not be done."""
    busy: bool = False
    """True if the same request may succeed later."""


GrammarDialect = Literal["llguidance", "guidance", "guided_decoding"]
"""Formats that an engine's grammars may have: all that llguidance enforces; of these what vLLM's backend `guidance`
does; or what TensorRT-LLM's guided decoding does, by its own allow-list."""


class EngineInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity, limits and capabilities of an engine; all but `lora_names` are constant while it is loaded."""

    engine: str
    """`transformers`, `llama_cpp`, `vllm`, `tensorrt_llm` or `null`."""
    model_name: str
    """The name under which the checkpoint is served, e.g. `Qwen2.5-7B-Instruct`."""
    max_model_len: int
    """Maximum tokens of prompt and output together."""
    max_batch_size: int
    """Sequences in flight at the same time; further ones wait in the engine's queue."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    """Empty if the model has none."""
    pad_token_id: int | None = None
    sampling_defaults: SamplingParams = SamplingParams()
    """Defaults of the checkpoint's generation_config.json."""
    supported: tuple[str, ...] = ()
    """Names of the `SamplingParams` and `GenerationRequest` fields this engine honours."""
    version: str = ""
    """Version of the engine's software, e.g. `transformers 5.23.0`."""
    created: int = 0
    """Unix seconds at which the engine was built."""
    max_logprobs: int = 0
    """Maximum of likeliest tokens per position."""
    grammar_backend: Literal["", "llguidance", "xgrammar"] = ""
    """Library that enforces grammars; empty is none. `grammar` is in `supported` if there is one."""
    grammar_dialect: GrammarDialect = "llguidance"
    grammar_kinds: tuple[str, ...] = ()
    """Supported values of `Grammar.kind`; empty is all of the library's."""
    grammar_excludes: tuple[str, ...] = ()
    """Fields of `supported` that are not honoured together with a grammar."""
    marker_token_ids: dict[str, int] = {}
    """Ids of added tokens, by their text, that grammars must name by id, since no text in a grammar matches them; empty
    where text matches whatever tokens spell it."""
    lora_names: tuple[str, ...] = ()
    """Adapters that requests may name; each is served as a model of that name."""
    max_loras: int = 0
    """Adapters that may be loaded at a time, by `Engine.load_lora`; 0 if those that were built in are all there are."""
    max_lora_rank: int = 0
    """Largest rank of an adapter that is loaded."""
    input_modalities: tuple[Modality, ...] = ("text",)
    """Modalities of prompts. `media` is in `supported` if images are among it."""
    max_images: int = 0
    """Images that a prompt may hold; 0 if the model takes none."""
    task: EngineTask = "generate"
    labels: tuple[str, ...] = ()
    """Names of the classes of a model that classifies or rewards."""
    embedding_size: int = 0
    """Numbers of an embedding; 0 is not known."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Sizes to which embeddings may be cut, where `dimensions` is supported; empty is every size up to their own."""
    max_num_tokens: int = 0
    """Tokens of one forward pass, those of prompts included; 0 is not known."""


class PromptRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A conversation or raw prompts for preprocessing to tokenize."""

    messages: list[dict[str, Any]] | None = None
    """OpenAI messages as the chat template sees them (content a string, tool arguments parsed). With images, content is
    a list of parts, `{"type": "text", "text": ...}` and `{"type": "image"}`, in their order."""
    image_sizes: list[tuple[int, int]] = []
    """Width and height in pixels of the messages' images, in their order. How many tokens an image has depends on its
    size alone, so that its pixels need not come along."""
    tools: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    """Overrides the model's own."""
    chat_template_kwargs: dict[str, Any] = {}
    documents: list[dict[str, Any]] | None = None
    """Documents for templates that render them."""
    reasoning_effort: str | None = None
    """Effort for templates that know it; "none" also turns thinking off where a template knows `enable_thinking`."""
    add_special_tokens: bool | None = None
    """Add the tokenizer's own special tokens (a BOS, say). None: to raw prompts only, since chat templates write their
    own."""
    prompts: list[str] | None = None
    """Raw texts, tokenized as they are, one result each."""
    pairs: list[tuple[str, str]] | None = None
    """Pairs of raw texts, each tokenized to one prompt as the tokenizer joins two texts."""
    bad_words: list[str] = []
    """Words to tokenize, each on its own and inside a text."""
    prediction: str | None = None
    """Text to tokenize as the inside of an output."""
    max_prompt_tokens: int | None = None
    """A prompt that has more for certain need not be tokenized to be refused; None is no limit."""
    key: str = ""
    """Name of the API key whose turn it takes where requests wait."""


class PromptResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token ids for a `PromptRequest`, or why there are none."""

    prompt_token_ids: list[list[int]] = []
    """One list for a conversation, else one for each prompt."""
    bad_words: list[list[int]] = []
    """Token sequences of all the request's `bad_words`."""
    prediction: list[int] = []
    compressed_token_type_ids: list[int] = []
    """First place of the second text in the prompt of each pair; empty where the tokenizer tells no token types."""
    error: str | None = None
    """Message for the client."""
    param: str | None = None
    code: str | None = None
    media_text: str = ""
    """Rendered chat template of a conversation with images, see `MediaPrompt.text`."""
    media_token_ids: list[int] = []
    """Token ids of `media_text` before the images are expanded, see `MediaPrompt.token_ids`."""
    image_tokens: int = 0
    """Tokens of the (one) prompt that stand for images."""
    unsupported: bool = False
    """The error is the model's (501), not the request's (400)."""
