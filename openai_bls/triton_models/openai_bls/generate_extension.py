"""Request bodies of Triton's endpoints: the tensors and parameters of an `openai_bls` request as one OpenAI body.

The extension takes scalars and flat arrays only, so an OpenAI body comes either whole, as JSON text in `request`, or in
parts: JSON text in the tensors of `tensors.JSON_INPUTS`, strings in `prompt`, `stop` and `bad_words`, and every scalar
field as a request parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openai_bls.api.common.bodies import fault
from openai_bls.api.common.faults import decoded
from openai_bls.api.common.lifted import Lifted, lifted
from openai_bls.api.common.other_forms import refuse_text_input
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.endpoint.request_keys import HEADER_PARAMETERS
from openai_bls.triton_models.tensors.models import JSON_INPUTS
from openai_bls.triton_models.tensors.word_tensors import text

# JSON text in these may also be a plain word, as OpenAI allows: tool_choice "auto".
_PLAIN_TEXT = {"tool_choice"}
# One element per item, or the whole array in one element.
_ARRAYS = {"messages", "tools"}
# Strings of which one is an array too, since the field is never a plain string.
_STRING_ARRAYS = {"bad_words"}
# Triton's own: its front ends pass `id` on as a parameter too, and headers if told to, and add some under these
# prefixes.
_TRITON_PREFIXES = ("triton_", "binary_data")
_NO_FIELDS = {"id", *HEADER_PARAMETERS}

_ANY = msgspec.json.Decoder()


# What a conversation, and the images in it, may come in.
_MAY_HAVE_IMAGES = {"request", "messages"}


def assemble_lifted(
    tensors: Mapping[str, Sequence[bytes]], parameters: Mapping[str, Any]
) -> tuple[str, Lifted[dict[str, Any]]]:
    """The same as `assemble`, with a body without its long strings of base64."""
    parts: dict[str, memoryview] = {}

    def light(text: bytes) -> bytes:
        text, found = lifted(text)
        parts.update(found)
        return text

    small = {
        name: [light(text) for text in texts] if name in _MAY_HAVE_IMAGES else texts for name, texts in tensors.items()
    }
    endpoint, body = assemble(small, parameters)
    return endpoint, Lifted(body, parts, lambda: assemble(tensors, parameters)[1])


def assemble(tensors: Mapping[str, Sequence[bytes]], parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The endpoint a request is meant for, and its body.

    Args:
        tensors: the BYTES inputs by name, each flattened.
        parameters: the request parameters.

    Raises:
        InvalidRequestError: text that is not JSON or UTF-8, a field given twice, or no telling which endpoint.
    """
    body: dict[str, Any] = {}
    if "request" in tensors:
        whole = _json("request", _single("request", tensors["request"]))
        if not isinstance(whole, dict):
            raise InvalidRequestError("'request' must hold a JSON object.", param="request")
        body = whole
    fields = {
        **{name: _field(name, value) for name, value in tensors.items() if name not in ("request", "endpoint")},
        **{
            name: value
            for name, value in parameters.items()
            if name.lower() not in _NO_FIELDS and not name.startswith(_TRITON_PREFIXES)
        },
    }
    for name, value in fields.items():
        if name in body:
            raise InvalidRequestError(f"'{name}' is given twice: in 'request' and beside it.", param=name)
        body[name] = value
    return _endpoint(tensors, body), body


def _field(name: str, values: Sequence[bytes]) -> Any:
    if name in JSON_INPUTS:
        if name in _ARRAYS:
            items = [_json(name, value) for value in values]
            # One element that is the array itself, or one element per item.
            return items[0] if len(items) == 1 and isinstance(items[0], list) else items
        value = _single(name, values)
        if name in _PLAIN_TEXT and value.lstrip()[:1] not in (b"{", b'"'):
            return text(value, name)
        return _json(name, value)
    texts = [text(value, name) for value in values]
    return texts[0] if len(texts) == 1 and name not in _STRING_ARRAYS else texts


def _endpoint(tensors: Mapping[str, Sequence[bytes]], body: Mapping[str, Any]) -> str:
    refuse_text_input(body)
    if "endpoint" in tensors:
        name = text(_single("endpoint", tensors["endpoint"]), "endpoint")
        if name not in TRITON_ENTRIES:
            raise InvalidRequestError(
                f"'endpoint' {name!r} is not served here; there are {', '.join(TRITON_ENTRIES)}.",
                param="endpoint",
            )
        return name
    if "messages" in body and "prompt" in body:
        raise InvalidRequestError(
            "Give 'messages' (chat) or 'prompt' (completion), not both; or name the 'endpoint'.",
            param="prompt",
        )
    if "messages" in body:
        return "chat.completions"
    if "prompt" in body:
        return "completions"
    raise InvalidRequestError(
        "Give 'messages' (chat), 'prompt' (completion), or a whole request as JSON text in 'request'; for "
        "anything else name the 'endpoint'.",
        param="messages",
        code="missing_required_parameter",
    )


def _single(name: str, values: Sequence[bytes]) -> bytes:
    if len(values) != 1:
        raise InvalidRequestError(f"'{name}' must have one element, not {len(values)}.", param=name)
    return values[0]


def _json(name: str, value: bytes) -> Any:
    return decoded(_ANY, value, fault, param=name)
