"""Rendering of conversations: the model's chat template, or that of a request."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

import jinja2

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.harmony import is_harmony
from openai_bls.triton_models.preprocessing import harmony

logger = logging.getLogger(__name__)

# Arguments of apply_chat_template that are this module's to set.
_RESERVED = {
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}


def template_texts(tokenizer: Any) -> list[str]:
    """Chat templates of a tokenizer of transformers; several if it has them by name."""
    template = getattr(tokenizer, "chat_template", None)
    return [template] if isinstance(template, str) and template else list(dict(template or {}).values())


def render(tokenizer: Any, request: PromptRequest) -> str:
    """Text of the conversation in `request`, by the chat template.

    Args:
        tokenizer: tokenizer of transformers.
        request: request with messages.

    Raises:
        InvalidRequestError: there is no template, or it does not render the messages.
    """
    templates = [request.chat_template] if request.chat_template else template_texts(tokenizer)
    if not templates:
        raise InvalidRequestError("This model has no chat template; use the completions endpoint.", param="messages")
    kwargs = {"add_generation_prompt": True, **_effort(request, templates), **request.chat_template_kwargs}
    reserved = _RESERVED.intersection(kwargs)
    if reserved:
        raise InvalidRequestError(
            f"'chat_template_kwargs' may not hold {', '.join(sorted(reserved))}.",
            param="chat_template_kwargs",
        )
    if request.documents is not None:
        kwargs["documents"] = request.documents
    messages = request.messages or []
    if any(map(is_harmony, templates)):
        messages = harmony.template_messages(messages)
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tools=request.tools, chat_template=request.chat_template, tokenize=False, **kwargs
        )
    except jinja2.TemplateError as error:
        # Templates refuse with raise_exception what they do not support; that is for the client to read.
        raise InvalidRequestError(
            f"The model's chat template refuses the messages: {error}", param="messages"
        ) from None
    except Exception as error:
        # A template is a program that runs on the client's data. A whole traceback may be hundreds of kilobytes,
        # of a recursion above all, and any client may cause it.
        logger.warning("the chat template failed: %s: %s%s", type(error).__name__, error, _template_line(error))
        raise InvalidRequestError(
            f"The model's chat template cannot render the messages: {error}", param="messages"
        ) from None
    return text


def _template_line(error: Exception) -> str:
    """The innermost line of the chat template that an exception came through; empty if it came through none."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [number for frame, number in frames if frame.f_code.co_filename == "<template>"]
    return f" (line {lines[-1]} of the template)" if lines else ""


def _effort(request: PromptRequest, templates: Sequence[str]) -> dict[str, Any]:
    """`reasoning_effort` as the templates know it.

    Raises:
        InvalidRequestError: they do not know it.
    """
    effort = request.reasoning_effort
    if effort is None:
        return {}
    if any(map(is_harmony, templates)):
        harmony.check_effort(effort)
    if any("reasoning_effort" in text for text in templates):
        return {"reasoning_effort": effort}
    # "medium" is OpenAI's default, hence as good as nothing; a model that does not think thinks as little as "none".
    if effort == "none" and any("enable_thinking" in text for text in templates):
        return {"enable_thinking": False}
    if effort in ("none", "medium"):
        return {}
    raise InvalidRequestError(
        'This model has no levels of reasoning: \'reasoning_effort\' may be left out, or be "none" or "medium".',
        param="reasoning_effort",
    )
