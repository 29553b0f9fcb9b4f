"""`response` objects: the request's fields and the outcome."""

from __future__ import annotations

import time
from typing import Any, Literal

from msgspec import UNSET, Raw
from msgspec.structs import replace

from openai_bls.api.chat.formats import TextFormat
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.faults import TOO_DEEP
from openai_bls.api.responses import schema
from openai_bls.api.responses.items import Item
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.core.usage import FinishReason, Usage

# Of OpenAI's `response` object.
_SAMPLING = ("frequency_penalty", "presence_penalty", "temperature", "top_p")


class Draft:
    """Builder of one request's `response` object in each of its states.

    Args:
        body: body of the request.
        tools: the request's `tools`, as `tools.echo` shows them.
        model: name of the model that the client knows.
        defaults: sampling parameters where the request sets none.

    Raises:
        InvalidRequestError: the request is nested too deeply to be encoded.
    """

    def __init__(
        self, body: schema.CreateRequest, tools: list[dict[str, Any]], model: str, defaults: SamplingParams
    ) -> None:
        self.id = new_id("resp_")
        self._created_at = int(time.time())
        reasoning, conversation = body.reasoning or schema.Reasoning(), schema.conversation_id(body)
        sampling = {name: _given(getattr(body, name), getattr(defaults, name)) for name in _SAMPLING}
        echo: dict[str, Any] = {
            "background": body.background is True,
            "conversation": None if conversation is None else {"id": conversation},
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": model,
            **sampling,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "prompt_cache_retention": body.prompt_cache_retention,
            "reasoning": {"effort": reasoning.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store is not False,
            "text": _text(body.text or schema.Text()),
            "tool_choice": body.tool_choice or "auto",
            "tools": tools,
            "top_logprobs": body.top_logprobs or 0,
            "truncation": _given(body.truncation, "disabled"),
            "user": body.user,
        }
        try:
            # Encoded once, and now: a schema that nests too deeply must not come to light halfway through a stream.
            self._echo = {name: Raw(encode(value)) for name, value in echo.items()}
        except RecursionError:
            raise InvalidRequestError(TOO_DEEP) from None

    def queued(self) -> dict[str, Any]:
        """The response in the background before the first token."""
        return self._response("queued", [])

    def cancelled(self, output: list[Item]) -> dict[str, Any]:
        """The cancelled response, with the output up to then."""
        return self._response("cancelled", output)

    def in_progress(self) -> dict[str, Any]:
        """The response before its output."""
        return self._response("in_progress", [])

    def finished(self, output: list[Item], reason: FinishReason, usage: Usage) -> dict[str, Any]:
        """The completed or incomplete response."""
        if reason == "length":
            return self._response("incomplete", output, usage=usage, incomplete_details={"reason": "max_output_tokens"})
        return self._response("completed", output, usage=usage, completed_at=int(time.time()))

    def failed(self, output: list[Item], error: ApiError) -> dict[str, Any]:
        """The failed response, with the output before the error."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        return self._response("failed", output, error={"code": code, "message": error.message})

    def _response(
        self,
        status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"],
        output: list[Item],
        *,
        usage: Usage | None = None,
        error: dict[str, Any] | None = None,
        incomplete_details: dict[str, Any] | None = None,
        completed_at: int | None = None,
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": completed_at,
            "error": error,
            "incomplete_details": incomplete_details,
            **self._echo,
            "output": output,
            "usage": usage_body(usage) if usage is not None else None,
        }


def _given(given: Any, default: Any) -> Any:
    """The given value, which chat completions have checked, or the default."""
    return default if given is UNSET or given is None else given


def _text(text: schema.Text) -> dict[str, Any]:
    form = text.format or TextFormat()
    if isinstance(form, schema.JsonSchemaFormat):
        form = replace(form, strict=bool(form.strict))
    return {"format": form, "verbosity": text.verbosity or "medium"}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Token counts under this API's names."""
    prompt = usage.prompt_tokens_details
    images = {} if prompt.image_tokens is None else {"image_tokens": prompt.image_tokens}
    return {
        "input_tokens": usage.prompt_tokens,
        # Nobody pays for what a prompt leaves in the cache.
        "input_tokens_details": {"cached_tokens": prompt.cached_tokens, "cache_write_tokens": 0, **images},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
