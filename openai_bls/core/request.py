"""Validated generation request: what the APIs hand to the pipeline."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from openai_bls.core.engine_types import PromptRequest, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import ImageSource

MAX_TIMEOUT_S = 24 * 3600
Timeout = Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_S)]
"""Seconds in which a request must be answered, from its arrival on."""

TIMEOUT_HEADER = "x-request-timeout"
"""Header with the seconds in which a request must be answered."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def checked_timeout(seconds: object, name: str) -> float:
    """`seconds`, which a request has under `name`, as its timeout.

    Raises:
        InvalidRequestError: it is no number, or out of range.
    """
    # Comparisons with NaN are false.
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= MAX_TIMEOUT_S:
        return float(seconds)
    raise InvalidRequestError(
        f"'{name}' must be a number of seconds above 0 and at most {MAX_TIMEOUT_S}, not {seconds!r}.", param=name
    )


def header_timeout(value: object) -> float:
    """Timeout of the header `x-request-timeout`.

    Raises:
        InvalidRequestError: it is no number, or out of range.
    """
    return checked_timeout(
        float(value) if isinstance(value, str) and _SECONDS.fullmatch(value) else value, TIMEOUT_HEADER
    )


class Deadline(NamedTuple):
    """Time by which a request must be answered."""

    at: float
    """Moment in seconds of `time.monotonic()`."""
    timeout_s: float
    """Seconds that the client gave."""

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.at - time.monotonic())


class Requested(msgspec.Struct, frozen=True):
    """A requested form of output."""

    format: dict[str, Any]
    """An `output.structured.Format` whose outside is checked; `output.structured.grammar` checks the rest. A structural
    tag is replaced by its content, so that formats can be combined."""
    param: str
    """The request's field, in OpenAI's notation."""


class ToolGrammar(msgspec.Struct, frozen=True):
    """Grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: str
    param: str
    """The definition's field in the request, in OpenAI's notation."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that the model may call, and whether it must."""

    offered: list[dict[str, Any]]
    """All that the prompt shows."""
    callable: list[dict[str, Any]]
    """Tools that `tool_choice` allows."""
    required: bool = False
    """The output must be calls only."""
    name: str | None = None
    """The one function that must be called."""
    checked: bool = False
    """A call must be `callable` and its arguments must fit the schema, even if none is required."""
    custom: dict[str, ToolGrammar | None] = {}
    """Custom tools among those offered, by name, with the grammar of their input; None is free text. To the model each
    is a function with one parameter, `input`."""


class ValidRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A generation request whose every field is in range; None means the engine's default."""

    chat: bool
    """A conversation, rendered by the chat template; else raw prompts."""
    model: str | None
    prompt: PromptRequest | None
    """Text for preprocessing; None if the prompts came as token ids."""
    images: tuple[ImageSource, ...] = ()
    """Images of the conversation, in the order of the `{"type": "image"}` parts of the prompt's messages."""
    prompt_token_ids: list[list[int]]
    n: int = 1
    max_tokens: int | None = None
    """Most new tokens as the client gave it; the end of the context may come first. None: `default_max_tokens`."""
    default_max_tokens: int | None = None
    """None: the rest of the context."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Empty is all."""
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    sampling: SamplingParams = SamplingParams()
    sampling_given: tuple[str, ...] = ()
    """Fields of `sampling` that the request sets; the others are the model's `sampling_defaults`."""
    priority: int = 0
    """Place among the waiting requests of the same API key: the lower, the earlier."""
    kv_transfer_params: dict[str, Any] | None = None
    logprobs: int | None = None
    """Number of likeliest tokens at each position; None: no log-probabilities at all."""
    structured: Requested | None = None
    """Format that the output must match."""
    stream: bool = False
    in_pieces: bool = False
    """A whole answer whose parts are read as they come, as those of a background response are."""
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Every chunk has the counts up to it, the first one no new token; with `include_usage` only, as in vLLM."""
    tools: ToolUse | None = None
    """Set if tool calls in the output are to be parsed."""
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    """Send the reasoning with the answer."""
    echo: bool = False
    best_of: int | None = None
    """Candidates for each prompt, of which the `n` likeliest are answered; None: `n`."""
    truncate_prompt_tokens: int | None = None
    """Number of the prompt's last tokens to keep; None keeps all."""
    timeout: float | None = None
    """Seconds from its arrival in which it must be answered; None is no limit."""
    ignored: tuple[str, ...] = ()
    """Fields of the body that were taken without effect, at most 32."""
    thinking_params: tuple[str, ...] = ()
    """Fields of the body that are hints about the reasoning."""

    @property
    def prompt_count(self) -> int:
        """Number of prompts."""
        if self.prompt_token_ids:
            return len(self.prompt_token_ids)
        assert self.prompt is not None
        return 1 if self.prompt.prompts is None else len(self.prompt.prompts)

    @property
    def candidates(self) -> int:
        """Sequences for each prompt."""
        return self.best_of or self.n
