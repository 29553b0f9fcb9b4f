"""Rendering of conversations: the model's chat template, or that of a request."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import jinja2

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import ApiError, InvalidRequestError, UnsupportedByModelError
from openai_bls.output.harmony import is_harmony
from openai_bls.triton_models.preprocessing import harmony
from openai_bls.triton_models.preprocessing.argument_forms import forms
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimit, CpuLimitError
from openai_bls.triton_models.preprocessing.effort import effort_variables

logger = logging.getLogger(__name__)

CPU_S = 2.0
"""Most CPU time of a rendering, in seconds. The longest conversation that fits any context takes a quarter of that."""
_PLAINEST = PromptRequest(messages=[{"role": "user", "content": "Hello"}])
_PLAINEST_PARTS = PromptRequest(messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
"""Plainest message for templates of models with images that take lists alone."""

_limit = CpuLimit()

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


def problem(tokenizer: Any, *, takes_images: bool = False) -> str | None:
    """Why the model's own chat template renders nothing, not even one short message; None if it does.

    Args:
        tokenizer: tokenizer of transformers. One without a template has no problem here.
        takes_images: a template that takes lists of parts alone is fine, too.
    """
    if not template_texts(tokenizer):
        return None
    found = _problem_with(tokenizer, _PLAINEST)
    return None if takes_images and found and _problem_with(tokenizer, _PLAINEST_PARTS) is None else found


def _problem_with(tokenizer: Any, request: PromptRequest) -> str | None:
    try:
        render(tokenizer, request)
    except CpuLimitError:
        return f"The model's chat template takes more than {CPU_S:g} s to render that."
    except ApiError as error:
        return error.message if error.message.endswith(".") else f"{error.message}."
    return None


def unsupported(found: str) -> UnsupportedByModelError:
    """The refusal of every conversation, by the `problem` that was found."""
    return UnsupportedByModelError(
        f"This model takes no conversations, not even one short message: use the completions endpoint. {found}"
    )


def too_slow(request: PromptRequest) -> InvalidRequestError:
    """The refusal of a conversation whose rendering was ended."""
    whose, param = ("'chat_template'", "chat_template") if request.chat_template else ("The chat template", "messages")
    return InvalidRequestError(
        f"{whose} takes more than {CPU_S:g} s to render these messages, and was stopped.",
        param=param,
        code="chat_template_timeout",
    )


def check_size(text: str, limit: int, param: str) -> None:
    """Refuse a text of more than `limit` bytes; raises InvalidRequestError."""
    size = len(text.encode(errors="replace"))
    if size > limit:
        what = "prediction" if param == "prediction" else "prompt"
        raise InvalidRequestError(
            f"The {what} has {size} bytes; at most {limit} are tokenized (max_prompt_bytes of the model "
            "preprocessing).",
            param=param,
            code="string_above_max_length",
        )


def render(tokenizer: Any, request: PromptRequest, cpu_s: float | None = CPU_S) -> str:
    """Text of the conversation in `request`, by the chat template.

    Args:
        tokenizer: tokenizer of transformers.
        request: request with messages.
        cpu_s: most CPU time, in seconds; None is no limit.

    Raises:
        InvalidRequestError: there is no template, or it does not render the messages.
        MemoryError: there is no more memory for it.
        CpuLimitError: it takes longer.
    """
    templates = [request.chat_template] if request.chat_template else template_texts(tokenizer)
    if not templates:
        raise InvalidRequestError("This model has no chat template; use the completions endpoint.", param="messages")
    effort = effort_variables(request.reasoning_effort, templates, request.chat_template_kwargs)
    kwargs = {"add_generation_prompt": True, **effort, **request.chat_template_kwargs}
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

    def rendered(form: Sequence[dict[str, Any]]) -> str:
        text: str = tokenizer.apply_chat_template(
            form, tools=request.tools, chat_template=request.chat_template, tokenize=False, **kwargs
        )
        return text

    failure: Exception | None = None
    end = None if cpu_s is None else time.thread_time() + cpu_s
    for form in forms(messages):
        try:
            if end is None:
                return rendered(form)
            return _limit.run(partial(rendered, form), max(0.0, end - time.thread_time()))
        except (CpuLimitError, MemoryError):
            raise
        except Exception as error:
            failure = failure or error
    assert failure is not None
    raise _refusal(failure, own=bool(request.chat_template)) from None


def _refusal(error: Exception, *, own: bool) -> InvalidRequestError:
    """The refusal of messages that a chat template, a request's `own` or the model's, has failed with."""
    whose, param = ("'chat_template'", "chat_template") if own else ("The model's chat template", "messages")
    if isinstance(error, jinja2.TemplateSyntaxError):
        return InvalidRequestError(f"{whose} cannot be parsed: {error.message} (line {error.lineno})", param=param)
    if isinstance(error, jinja2.TemplateError):
        # Templates refuse with raise_exception what they do not support; that is for the client to read.
        param = "messages" if type(error) is jinja2.TemplateError else param
        return InvalidRequestError(f"{whose} refuses the messages: {error}", param=param)
    # A template is a program that runs on the client's data. A whole traceback may be hundreds of kilobytes,
    # of a recursion above all, and any client may cause it.
    logger.warning("the chat template failed: %s: %s%s", type(error).__name__, error, _template_line(error))
    return InvalidRequestError(f"{whose} cannot render the messages: {error}", param=param)


def _template_line(error: Exception) -> str:
    """The innermost line of the chat template that an exception came through; empty if it came through none."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [number for frame, number in frames if frame.f_code.co_filename == "<template>"]
    return f" (line {lines[-1]} of the template)" if lines else ""
