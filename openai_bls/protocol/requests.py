"""From a request body to a `ValidRequest`: one frozen value that the rest of the program can rely on."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeVar

import msgspec

from openai_bls.errors import InvalidRequestError
from openai_bls.messages import PromptRequest
from openai_bls.protocol import schema

Endpoint = Literal["chat.completions", "completions"]

# OpenAI's limit is 4; nothing here costs more with a few more.
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
# OpenAI's documented default for the legacy endpoint.
DEFAULT_COMPLETION_TOKENS = 16


class ValidRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A generation request whose every field is in range; None means the engine's default."""

    endpoint: Endpoint
    model: str | None
    prompt: PromptRequest | None
    """Text for preprocessing; None if the prompts came as token ids."""
    prompt_token_ids: list[list[int]]
    n: int = 1
    max_tokens: int | None = None
    """None: `default_max_tokens`, or fewer if the context has no room for them."""
    default_max_tokens: int | None = None
    """None: whatever the context has room for."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage_stats: bool = False
    tools: bool = False
    """Whether tool calls in the output are to be parsed."""
    parallel_tool_calls: bool = True
    echo: bool = False

    @property
    def prompt_count(self) -> int:
        """How many prompts the request has."""
        if self.prompt is None:
            return len(self.prompt_token_ids)
        return 1 if self.prompt.prompts is None else len(self.prompt.prompts)


_SCHEMAS: dict[str, type[schema.ChatCompletionRequest | schema.CompletionRequest]] = {
    "chat.completions": schema.ChatCompletionRequest,
    "completions": schema.CompletionRequest,
}
_TOO_DEEP = "The request is nested too deeply."
_DECODERS = {name: msgspec.json.Decoder(cls) for name, cls in _SCHEMAS.items()}


def parse_json(endpoint: Endpoint, body: bytes) -> ValidRequest:
    """A `ValidRequest` from a request body.

    Raises:
        InvalidRequestError: the body is not JSON, or a field is unknown, of the wrong type, out of range or not
            honoured; `param` names the field.
    """
    try:
        request = _DECODERS[endpoint].decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"We could not parse the JSON body of your request: {error}") from None
    except RecursionError:
        raise InvalidRequestError(_TOO_DEEP) from None
    return _validate(request)


def parse_object(endpoint: Endpoint, body: dict[str, Any]) -> ValidRequest:
    """A `ValidRequest` from a parsed body; raises as `parse_json` does."""
    try:
        request = msgspec.convert(body, _SCHEMAS[endpoint])
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise InvalidRequestError(_TOO_DEEP) from None
    return _validate(request)


_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`")


def _invalid(error: msgspec.ValidationError) -> InvalidRequestError:
    """msgspec's sentence, with the field's path as OpenAI's `param`."""
    message = str(error)
    path = ""
    at = _AT.search(message)
    if at is not None:
        path, message = at["path"], message[: at.start()]
    for pattern, text, code in (
        (_UNKNOWN, "Unrecognized request argument: {}", "unknown_parameter"),
        (_MISSING, "Missing required parameter: {}", "missing_required_parameter"),
    ):
        match = pattern.match(message)
        if match is not None:
            param = f"{path}.{match['name']}" if path else match["name"]
            return InvalidRequestError(text.format(f"'{param}'"), param=param, code=code)
    if re.search(r"\.content\[[^\]]*\]\.type$", path):
        message += "; this model takes text only"
    param = path or None
    where = f" for '{param}'" if param else ""
    return InvalidRequestError(f"Invalid value{where}: {message}", param=param)


RequestT = TypeVar("RequestT", schema.ChatCompletionRequest, schema.CompletionRequest)


def _validate(
    request: schema.ChatCompletionRequest | schema.CompletionRequest,
) -> ValidRequest:
    refused = schema.refuse_not_honoured(request)
    if refused is not None:
        neutral = schema.NEUTRAL[refused]
        allowed = " or ".join(json.dumps(value) for value in (*neutral.values, None))
        raise InvalidRequestError(
            f"'{refused}' is not supported: {neutral.advice}. It may be left out, or be {allowed}.",
            param=refused,
            code="unsupported_parameter",
        )
    options = request.stream_options
    if options is not None and not request.stream:
        raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if request.seed is not None and not -(2**63) <= request.seed < 2**64:
        raise InvalidRequestError("'seed' must be an integer of 64 bits.", param="seed")
    common: dict[str, Any] = {
        "model": request.model,
        "n": request.n or 1,
        "stop": _stop(request.stop),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "ignore_eos": bool(request.ignore_eos),
        "include_stop_str_in_output": bool(request.include_stop_str_in_output),
        "skip_special_tokens": request.skip_special_tokens is not False,
        "temperature": request.temperature,
        "top_p": request.top_p,
        # Both 0 (transformers) and -1 (vLLM) mean off.
        "top_k": max(request.top_k, 0) if request.top_k is not None else None,
        "min_p": request.min_p,
        # OpenAI's seeds may be negative; the engines' are unsigned.
        "seed": request.seed % 2**64 if request.seed is not None else None,
        "stream": bool(request.stream),
        "include_usage": options is not None and bool(options.include_usage),
        "continuous_usage_stats": options is not None and bool(options.continuous_usage_stats),
    }
    if isinstance(request, schema.ChatCompletionRequest):
        return _chat(request, common)
    return _completion(request, common)


def _chat(request: schema.ChatCompletionRequest, common: dict[str, Any]) -> ValidRequest:
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise InvalidRequestError(
            "'max_tokens' and 'max_completion_tokens' say the same; give one of them.",
            param="max_tokens",
        )
    offered = _tools(request)
    kwargs = dict(request.chat_template_kwargs or {})
    for name in ("add_generation_prompt", "continue_final_message"):
        value = getattr(request, name)
        if value is not None:
            kwargs[name] = value
    if kwargs.get("continue_final_message"):
        if request.add_generation_prompt:
            raise InvalidRequestError(
                "'continue_final_message' and 'add_generation_prompt' exclude each other.",
                param="continue_final_message",
            )
        kwargs["add_generation_prompt"] = False
    return ValidRequest(
        endpoint="chat.completions",
        prompt=PromptRequest(
            messages=[_message(m, i) for i, m in enumerate(request.messages)],
            tools=offered,
            chat_template_kwargs=kwargs,
        ),
        prompt_token_ids=[],
        max_tokens=request.max_completion_tokens or request.max_tokens,
        tools=offered is not None,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        **common,
    )


def _completion(request: schema.CompletionRequest, common: dict[str, Any]) -> ValidRequest:
    texts, token_ids = _prompts(request.prompt)
    return ValidRequest(
        endpoint="completions",
        prompt=PromptRequest(prompts=texts) if texts is not None else None,
        prompt_token_ids=token_ids,
        max_tokens=request.max_tokens,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        echo=bool(request.echo),
        **common,
    )


def _prompts(
    prompt: str | list[str | int | list[int]],
) -> tuple[list[str] | None, list[list[int]]]:
    """The four forms of `prompt`: (texts, []) or (None, token ids)."""
    if isinstance(prompt, str):
        return [prompt], []
    if not prompt:
        raise InvalidRequestError("'prompt' is an empty array.", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    rows = [item for item in prompt if isinstance(item, list)]
    if len(texts) == len(prompt):
        return texts, []
    if len(ids) == len(prompt):
        return None, [ids]
    if len(rows) == len(prompt):
        return None, rows
    raise InvalidRequestError(
        "'prompt' mixes kinds: give a string, an array of strings, an array of token ids or an array of such arrays.",
        param="prompt",
    )


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"'stop' has {len(stops)} strings; at most {MAX_STOP_STRINGS} are supported.",
            param="stop",
        )
    for text in stops:
        if not text:
            raise InvalidRequestError("'stop' holds an empty string.", param="stop")
        if len(text) > MAX_STOP_LENGTH:
            raise InvalidRequestError(
                f"'stop' holds a string of {len(text)} characters; at most {MAX_STOP_LENGTH} are supported.",
                param="stop",
            )
    return stops


def _tools(request: schema.ChatCompletionRequest) -> list[dict[str, Any]] | None:
    """The tools that the template shall show, or None."""
    choice = request.tool_choice
    if isinstance(choice, schema.NamedToolChoice) or choice == "required":
        raise InvalidRequestError(
            '\'tool_choice\' can be "auto" or "none" in this release: it cannot force a call.',
            param="tool_choice",
            code="unsupported_parameter",
        )
    if not request.tools:
        if choice == "auto" and request.tools is None:
            raise InvalidRequestError("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        return None
    if choice == "none":
        return None
    return [msgspec.to_builtins(tool) for tool in request.tools]


def _text(content: schema.Content | None) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, schema.TextPart) else part.refusal for part in content)


def _message(message: schema.Message, index: int) -> dict[str, Any]:
    """The message as chat templates know it: content a string, tool arguments an object."""
    if isinstance(message, (schema.SystemMessage, schema.DeveloperMessage)):
        result: dict[str, Any] = {"role": "system"}
    elif isinstance(message, schema.UserMessage):
        result = {"role": "user"}
    elif isinstance(message, schema.ToolMessage):
        result = {"role": "tool"}
        if message.tool_call_id is not None:
            result["tool_call_id"] = message.tool_call_id
    else:
        result = {"role": "assistant"}
        for name in ("function_call", "audio"):
            if getattr(message, name) is not None:
                raise InvalidRequestError(
                    f"'{name}' of an assistant message is not supported: use 'tool_calls' and text.",
                    param=f"messages[{index}].{name}",
                )
        if message.content is None and not message.tool_calls and message.refusal is None:
            raise InvalidRequestError(
                "An assistant message needs 'content' or 'tool_calls'.",
                param=f"messages[{index}].content",
            )
        if message.tool_calls:
            result["tool_calls"] = [
                _tool_call(call, f"messages[{index}].tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
            ]
    content = _text(message.content)
    if not content and isinstance(message, schema.AssistantMessage):
        content = message.refusal or ""
    result["content"] = content
    if message.name is not None:
        result["name"] = message.name
    return result


def _tool_call(call: schema.ToolCall, param: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            "The arguments of a tool call must be a JSON object, as text.",
            param=f"{param}.function.arguments",
        )
    result: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
    if call.id is not None:
        result["id"] = call.id
    return result
