"""OpenAI request bodies, field by field.

A field is in one of four places, and nowhere else; `api.common.fields` has the rule:

- honoured: typed here and used in `validation`;
- without effect: in `WithoutEffect`, taken, and named in the response header `openai-bls-ignored`;
- unsupported: in `UNSUPPORTED`, accepted at its neutral values and otherwise refused by name;
- unknown: refused by name, unless the setting `unknown_fields` is `ignore`.

Sources: the OpenAI API reference for chat completions and completions; the names of vLLM, SGLang, llama.cpp,
OpenRouter, Ollama and DashScope for the additions.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.formats import (
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuralTagFormat,
    StructuredOutputs,
    TextFormat,
)
from openai_bls.api.chat.messages import (
    AllowedToolsChoice,
    CustomTool,
    Message,
    NamedCustomChoice,
    NamedToolChoice,
    Prediction,
    Tool,
)
from openai_bls.api.common.documented import PER_TOKEN, documented, limits
from openai_bls.api.common.unsupported import Unsupported
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.request import Timeout

# OpenAI's limit is 4; nothing here costs more with a few more.
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_BAD_WORDS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_TEMPLATE_VARIABLES = 256

# The OpenAI SDKs leave unset fields out, other clients send null: both mean the default.
NonNegativeInt = Annotated[int, Meta(ge=0)]
# Bounded, since what goes to the engine must fit its integers.
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
TopP = Probability
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Choices = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
# Enforced by `validation`.
StopString = Annotated[str, limits(minLength=1, maxLength=MAX_STOP_LENGTH)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """A last chunk with the token counts of the request."""
    continuous_usage_stats: bool | None = None
    """Token counts in every chunk, with `include_usage`."""
    include_obfuscation: bool | None = None
    """Padding against traffic analysis on OpenAI's own network: accepted, none is sent."""


class WithoutEffect(msgspec.Struct, kw_only=True):
    """Taken without effect: none of these can change the answer."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    client_metadata: Any = None
    # Other servers' hints for caches and routers, and ids of the request.
    cache_salt: Any = None
    cache_prompt: Any = None
    request_id: Any = None
    rid: Any = None
    provider: Any = None
    usage: Any = None
    keep_alive: Any = None
    speed: Any = None


class StructuredOutput(WithoutEffect, kw_only=True):
    """Structured output; `output.structured` reads these fields."""

    response_format: Annotated[
        Any, documented(TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat | None)
    ] = None
    """See "Structured output"."""
    structured_outputs: Annotated[Any, documented(StructuredOutputs | None)] = None
    """See "Structured output"."""
    guided_json: Annotated[Any, documented(dict[str, Any] | bool | str | None)] = None
    """See "Structured output"."""
    guided_regex: Annotated[Any, documented(Annotated[str, Meta(min_length=1)] | None)] = None
    """See "Structured output"."""
    guided_choice: Annotated[
        Any, documented(Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] | None)
    ] = None
    """See "Structured output"."""
    guided_grammar: Annotated[Any, documented(Annotated[str, Meta(min_length=1)] | None)] = None
    """See "Structured output"."""
    guided_json_object: Annotated[Any, documented(bool | None)] = None
    """See "Structured output"."""
    guided_decoding_backend: Annotated[Any, documented(Literal["auto"] | None)] = None
    """See "Structured output"."""
    guided_whitespace_pattern: Annotated[Any, documented(None)] = None
    """See "Structured output"."""
    # SGLang's names
    json_schema: Annotated[Any, documented(dict[str, Any] | str | None)] = None
    """SGLang's name of `guided_json`."""
    regex: Annotated[Any, documented(Annotated[str, Meta(min_length=1)] | None)] = None
    """SGLang's name of `guided_regex`."""
    ebnf: Annotated[Any, documented(Annotated[str, Meta(min_length=1)] | None)] = None
    """SGLang's name of `guided_grammar`."""


STRUCTURED_FIELDS = StructuredOutput.__struct_fields__[len(WithoutEffect.__struct_fields__) :]


class Generation(StructuredOutput, kw_only=True):
    """Fields of chat completions and completions."""

    model: str | None = None
    """A served name; absent is the default model; unknown is a 404 `model_not_found`."""
    n: Choices | None = None
    """Number of choices, 1 unless given."""
    stop: StopString | Annotated[list[StopString], limits(maxItems=MAX_STOP_STRINGS)] | None = None
    """A string or up to 16, found in the answer across chunk borders, never partly sent. Thoughts and arguments of
    calls are not searched, unless `stop_strings` says so."""
    stream: bool | None = None
    """Server-sent events instead of one answer."""
    stream_options: StreamOptions | None = None
    """Options of a stream: `include_usage`, and with it `continuous_usage_stats` (counts in every chunk, from 0 on;
    else nothing); `include_obfuscation` is without effect."""
    temperature: Temperature | None = None
    """Sampling parameter; without it the checkpoint's generation_config.json counts."""
    top_p: TopP | None = None
    """Sampling parameter; without it the checkpoint's generation_config.json counts. 0 takes the likeliest token."""
    seed: Annotated[int, limits(minimum=-(2**63), maximum=2**64 - 1)] | None = None
    """Seed of the sampling: an equal request with it gives the same text, whatever else is in the batch; each of `n`
    choices has its own. In half precision on a GPU a near tie may turn."""
    # Checked in `validation`: msgspec's bounds end at 2^63.
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Meta(ge=-100, le=100)]], limits(propertyNames={"pattern": r"^[0-9]{1,9}\Z"})
        ]
        | None
    ) = None
    """Token id, as a string, to the bias that is added to its score."""
    # vLLM's additions
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Sampling parameter; without it the checkpoint's generation_config.json counts."""
    min_p: Probability | None = None
    """Sampling parameter; without it the checkpoint's generation_config.json counts."""
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    min_tokens: NonNegativeInt | None = None
    """Tokens before which no end token is sampled; at most `max_tokens`."""
    bad_words: Annotated[list[StopString], limits(maxItems=MAX_BAD_WORDS)] | None = None
    """Up to 256 strings, forbidden as the tokens that they are as a word of their own and inside a text."""
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    """Up to 1,024 token ids that end the output, besides the model's own."""
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    """Up to 1,024 token ids, the only ones that are sampled; without an end token the answer ends by its length."""
    ignore_eos: bool | None = None
    """Generation goes on after the model's end token."""
    include_stop_str_in_output: bool | None = None
    """The stop string that was found stays in the text."""
    skip_special_tokens: bool | None = None
    """Special tokens are left out of the text, unless false."""
    add_special_tokens: bool | None = None
    """Unless given, true for a raw prompt and false for a chat, whose template writes its own."""
    truncate_prompt_tokens: PositiveInt | None = None
    """Keeps so many of the prompt's last tokens."""
    priority: Priority | None = None
    """Place in the queue among the requests of the same API key: the lower, the earlier. Takes nothing from other keys,
    and stops nothing that has begun, but in vLLM with its `scheduling_policy`."""
    kv_transfer_params: dict[str, Any] | None = None
    """For the connector in vLLM's `kv_transfer_config`; a whole answer has what it gives back."""
    # ours
    timeout: Timeout | None = None
    """Seconds from the request's arrival in which it must be answered."""
    # unsupported: see UNSUPPORTED
    use_beam_search: Any = UNSET
    length_penalty: Any = UNSET
    spaces_between_special_tokens: Any = UNSET
    return_token_ids: Any = UNSET
    return_tokens_as_token_ids: Any = UNSET
    prompt_logprobs: Any = UNSET
    mm_processor_kwargs: Any = UNSET
    vllm_xargs: Any = UNSET
    repetition_detection: Any = UNSET
    # SGLang's, of which vllm-router and sglang-router add the first two at these values
    no_stop_trim: Any = UNSET
    return_hidden_states: Any = UNSET
    lora_path: Any = UNSET
    session_params: Any = UNSET
    # llama.cpp's, Ollama's and Dynamo's
    typical_p: Any = UNSET
    options: Any = UNSET
    nvext: Any = UNSET


class WithoutEffectInChat(Generation, kw_only=True):
    """Taken without effect by chat completions, unknown to completions."""

    verbosity: Any = None


class ThinkingSwitch(msgspec.Struct):
    """DeepSeek's and GLM's switch of the reasoning."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]
    budget_tokens: NonNegativeInt | None = None


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True):
    """OpenRouter's options of the reasoning."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"summary"})

    effort: Annotated[str, Meta(max_length=32)] | None = None
    max_tokens: NonNegativeInt | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    """True leaves thoughts out of the answer, as `include_reasoning` does."""


class ChatCompletionRequest(WithoutEffectInChat, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1), PER_TOKEN]
    """Roles system, developer, user, assistant, tool; content a string or parts `text` and `image_url` (see "Images");
    `name`; `tool_calls`; `tool_call_id`; `refusal`; `reasoning`."""
    max_tokens: PositiveInt | None = None
    """Most new tokens; the answer ends at the end of the context if that comes first, or without it."""
    max_completion_tokens: PositiveInt | None = None
    """The newer name of `max_tokens`: thoughts count."""
    n_predict: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """llama.cpp's name of `max_tokens`; -1 is no limit."""
    logprobs: bool | None = None
    """The probability of each token. See "Log-probabilities"."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20, with `logprobs`."""
    tools: Annotated[list[Tool | CustomTool] | None, PER_TOKEN] = None
    """See "Tools"."""
    tool_choice: (
        Literal["none", "auto", "required"] | NamedToolChoice | NamedCustomChoice | AllowedToolsChoice | None
    ) = None
    """See "Tools"."""
    parallel_tool_calls: bool | None = None
    """False ends the answer after one call."""
    reasoning_effort: Annotated[str, Meta(max_length=32)] | None = None
    """A hint: the effort where the chat template has levels, the nearest one; where it only switches thinking, `"none"`
    turns it off and any other on. Without effect where a model has neither."""
    # vLLM's additions
    chat_template: str | None = None
    """Template instead of the model's own, if the operator set `trust_chat_template`, since a template is a program;
    else refused."""
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_TEMPLATE_VARIABLES)] | None = None
    """`{"enable_thinking": false}` and whatever else the template takes, up to 256 variables."""
    enable_thinking: bool | None = None
    """DashScope's name of `chat_template_kwargs.enable_thinking`, a hint as `reasoning_effort` is."""
    thinking: ThinkingSwitch | bool | None = None
    """DeepSeek's and GLM's `{"type": "enabled"}` or `{"type": "disabled"}`, a hint as `reasoning_effort` is."""
    think: bool | Annotated[str, Meta(max_length=32)] | None = None
    """Ollama's name of it: true, false or an effort."""
    thinking_token_budget: NonNegativeInt | None = None
    """A hint: 0 turns thinking off, any other on, and is told to templates that take a budget. It cuts nothing."""
    reasoning: ReasoningOptions | None = None
    """OpenRouter's `effort`, `enabled`, `max_tokens` (a budget) and `exclude`, as hints."""
    add_generation_prompt: bool | None = None
    """The prompt ends with the opening of the answer, unless false."""
    continue_final_message: bool | None = None
    """The answer goes on from the last message, the assistant's."""
    documents: Annotated[list[dict[str, Any]] | None, PER_TOKEN] = None
    """Documents for templates that show them."""
    include_reasoning: bool | None = None
    """False leaves thoughts out of the answer."""
    prediction: Prediction | None = None
    """`{"type": "content", "content": ...}`, a string or text parts: what the answer is likely to be, such as a file
    before an edit. The answer is the same and comes sooner."""
    # unsupported: see UNSUPPORTED
    modalities: Any = UNSET
    audio: Any = UNSET
    echo: Any = UNSET
    best_of: Any = UNSET
    web_search_options: Any = UNSET
    moderation: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET
    separate_reasoning: Any = UNSET
    stream_reasoning: Any = UNSET


class CompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], limits(minItems=1)]
    """A string, an array of strings, an array of token ids, an array of such arrays."""
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Most new tokens, 16 unless given, or fewer at the end of the context; 0 with `echo` only."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20 of the likeliest tokens. See "Log-probabilities"."""
    echo: bool | None = None
    """The prompt before the answer; with `logprobs` also the prompt's (engine)."""
    best_of: Choices | None = None
    """The `n` likeliest of so many, by their mean log-probability; not streamed unless it is `n`."""
    # unsupported: see UNSUPPORTED
    suffix: Any = UNSET


ENGINE_FIELDS = frozenset(STRUCTURED_FIELDS) | {
    *SamplingParams.__struct_fields__,
    *("bad_words", "min_tokens", "allowed_token_ids", "best_of", "logprobs", "top_logprobs", "prediction"),
    "kv_transfer_params",
}
"""Honoured where the engine behind the model does it, else refused by `pipeline.preparation.checks`."""

UNSUPPORTED: dict[str, Unsupported] = {
    "modalities": Unsupported((["text"], []), "answers are text only"),
    "audio": Unsupported((), "answers are text only"),
    "web_search_options": Unsupported((), "there is no web search here"),
    "moderation": Unsupported((), "nothing is moderated by itself here; ask /v1/moderations, or set a guard"),
    "functions": Unsupported(([],), "use tools"),
    "function_call": Unsupported(("none", "auto"), "use tools and tool_choice"),
    "suffix": Unsupported(("",), "the served models do not fill in the middle"),
    "use_beam_search": Unsupported((False,), "the engines sample; use n or best_of"),
    "length_penalty": Unsupported((1,), "it belongs to beam search, which there is not"),
    "spaces_between_special_tokens": Unsupported((True,), "text is what the tokenizer makes of the tokens"),
    "return_token_ids": Unsupported((False,), "answers are text; for the prompt's ids use /v1/chat/completions/render"),
    "return_tokens_as_token_ids": Unsupported((False,), "log-probabilities name tokens by their text and bytes"),
    "prompt_logprobs": Unsupported((), "use completions with 'echo' and 'logprobs'"),
    "mm_processor_kwargs": Unsupported(({},), "images are processed as the checkpoint says"),
    "vllm_xargs": Unsupported(({},), "the engines take no further arguments"),
    "repetition_detection": Unsupported((), "use repetition_penalty"),
    "lora_path": Unsupported((), "name the adapter in 'model'"),
    "session_params": Unsupported(({},), "send the messages; conversations are kept by /v1/responses"),
    "typical_p": Unsupported((1,), "use top_p or min_p"),
    "options": Unsupported(({},), "give sampling parameters as fields of the request"),
    "nvext": Unsupported(({},), "give sampling parameters as fields of the request"),
    "no_stop_trim": Unsupported((False,), "use include_stop_str_in_output"),
    "return_hidden_states": Unsupported((False,), "the engines give tokens; for vectors use /v1/embeddings"),
    "separate_reasoning": Unsupported((True,), "thoughts come apart from the answer, or not: include_reasoning"),
    "stream_reasoning": Unsupported((True,), "thoughts are streamed as they come"),
}
"""Field name → the values at which it may be given; null always may."""
UNSUPPORTED_IN_CHAT: dict[str, Unsupported] = UNSUPPORTED | {
    "echo": Unsupported((False,), "a conversation is not part of its answer"),
    "best_of": Unsupported((1,), "use n, or completions"),
}
"""Unsupported fields of chat completions."""
