"""Prompt encoder: chat template and tokenization, through transformers' own tokenizer classes."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.word_lists import WordList
from openai_bls.output.harmony import is_harmony
from openai_bls.triton_models.preprocessing import harmony
from openai_bls.triton_models.preprocessing.token_bound import token_bound

logger = logging.getLogger(__name__)

# Characters up to which a text is never too large.
_SHORT_TEXT = 1 << 16

# By which two ways of encoding are compared.
_SAMPLE = " Hello,  World! 1234 don't ÄÖ 你好 🙂\n\n\tx"

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


class PromptEncoder:
    """Turns conversations and texts into token ids.

    Args:
        tokenizer_dir: a tokenizer as `save_pretrained` writes it, with its chat template.
        max_prompt_bytes: the largest text to tokenize; None is no limit.
    """

    def __init__(self, tokenizer_dir: Path, max_prompt_bytes: Callable[[], int] | None = None) -> None:
        if not tokenizer_dir.is_dir() or not any(tokenizer_dir.iterdir()):
            # transformers would take it for the name of a repository on the hub.
            raise FileNotFoundError(f"nothing at {tokenizer_dir}")
        # A second and 30 MB, even without torch: no process but preprocessing's pays for them.
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True)
        # Some classes build the tokenizer anew and keep what they built it from: 50 MB for 150,000 tokens.
        for name in ("_vocab", "_merges"):
            vars(self._tokenizer).pop(name, None)
        # The first call may change how the tokenizer truncates and pads, which must not happen beside another's.
        self._tokenizer("")
        # The length is checked against the engine's limit, with an error; a warning in the log helps nobody.
        self._tokenizer.model_max_length = 10**9
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        self._bound = token_bound(backend.to_str()) if backend is not None else None
        self._fast = _fast_encoding(self._tokenizer)
        self._max_prompt_bytes = max_prompt_bytes
        self.eos_token_id: int | None = self._tokenizer.eos_token_id
        self.pad_token_id: int | None = self._tokenizer.pad_token_id

    def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`; what the request did wrong comes back in the result."""
        try:
            if request.messages is not None:
                prompts = [self._encode_chat(request)]
            else:
                special = request.add_special_tokens is not False
                prompts = []
                for text in request.prompts or []:
                    self.check_length(text, request.max_prompt_tokens, "prompt")
                    prompts.append(self.encode(text, add_special_tokens=special))
            bad_words = [list(word) for word in self.encode_words(request.bad_words)]
            prediction: list[int] = []
            if request.prediction is not None:
                self.check_length(request.prediction, None, "prediction")
                prediction = self.encode(request.prediction, add_special_tokens=False)
            return PromptResult(prompts, bad_words, prediction)
        except InvalidRequestError as error:
            return PromptResult(error=error.message, param=error.param, code=error.code)

    def check_length(self, text: str, max_tokens: int | None, param: str) -> None:
        """Refuse a text that is too long to be tokenized.

        Raises:
            InvalidRequestError: it has more than `max_tokens` for certain, or too many bytes.
        """
        # Fewer characters than tokens allowed prove nothing.
        bound = self._bound
        if (
            max_tokens is not None
            and len(text) > max_tokens
            and bound is not None
            and bound.exceeded_by(text, max_tokens)
        ):
            raise InvalidRequestError(
                f"This model's maximum context length is {max_tokens} tokens; the prompt has more. Shorten it.",
                param=param,
                code="context_length_exceeded",
            )
        if self._max_prompt_bytes is None or len(text) <= _SHORT_TEXT:
            return
        limit, size = self._max_prompt_bytes(), len(text.encode(errors="replace"))
        if size > limit:
            what = "prediction" if param == "prediction" else "prompt"
            raise InvalidRequestError(
                f"The {what} has {size} bytes; at most {limit} are tokenized (max_prompt_bytes of the model "
                "preprocessing).",
                param=param,
                code="string_above_max_length",
            )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of raw text.

        Args:
            text: text to tokenize.
            add_special_tokens: whether the tokenizer adds its own special tokens, such as a BOS.
        """
        if self._fast is not None:
            return self._fast(text, add_special_tokens)
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    def encode_words(self, words: Sequence[str]) -> WordList:
        """Stop or bad words as token sequences, each in both of its forms: at the start of a word and inside a text.

        A word may be tokenized differently in context all the same: openai_bls matches stop strings in text instead.
        """
        encoded = (tuple(self.encode(form, add_special_tokens=False)) for form in word_forms(words))
        return [ids for ids in dict.fromkeys(encoded) if ids]

    @functools.cached_property
    def special_tokens(self) -> tuple[list[int], list[int]]:
        """Token ids that the tokenizer adds by itself before a text (a BOS, say), and after it."""
        text = self.encode("a", add_special_tokens=False)
        whole = self.encode("a")
        for at in range(len(whole) - len(text) + 1):
            if whole[at : at + len(text)] == text:
                return whole[:at], whole[at + len(text) :]
        return [], []

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special ones included."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _encode_chat(self, request: PromptRequest) -> list[int]:
        text = self.render(request)
        self.check_length(text, request.max_prompt_tokens, "messages")
        return self.encode(text, add_special_tokens=request.add_special_tokens is True)

    def render(self, request: PromptRequest) -> str:
        """Text of the conversation in `request`, by the chat template.

        Raises:
            InvalidRequestError: there is no template, or it does not render the messages.
        """
        template = request.chat_template or getattr(self._tokenizer, "chat_template", None)
        if not template:
            raise InvalidRequestError(
                "This model has no chat template; use the completions endpoint.", param="messages"
            )
        kwargs = {"add_generation_prompt": True, **_effort(request, template), **request.chat_template_kwargs}
        reserved = _RESERVED.intersection(kwargs)
        if reserved:
            raise InvalidRequestError(
                f"'chat_template_kwargs' may not hold {', '.join(sorted(reserved))}.",
                param="chat_template_kwargs",
            )
        if request.documents is not None:
            kwargs["documents"] = request.documents
        messages = request.messages or []
        if _any_harmony(template):
            messages = harmony.template_messages(messages)
        try:
            text: str = self._tokenizer.apply_chat_template(
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


def _fast_encoding(tokenizer: Any) -> Callable[[str, bool], list[int]] | None:
    """Encoding without the offsets into the text, a third of the time; None if the tokenizer has no such way.

    The function takes a text and whether special tokens are added, and gives token ids.
    """
    from transformers import PreTrainedTokenizerFast

    own = (getattr(type(tokenizer), name, None) for name in ("__call__", "encode", "_encode_plus"))
    plain = (getattr(PreTrainedTokenizerFast, name, None) for name in ("__call__", "encode", "_encode_plus"))
    if list(own) != list(plain):
        # A class that does something of its own with the text.
        return None
    encode_batch = tokenizer.backend_tokenizer.encode_batch_fast

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    for special in (False, True):
        if encode(_SAMPLE, special) != tokenizer(_SAMPLE, add_special_tokens=special)["input_ids"]:
            return None
    return encode


def _template_line(error: Exception) -> str:
    """The innermost line of the chat template that an exception came through; empty if it came through none."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [number for frame, number in frames if frame.f_code.co_filename == "<template>"]
    return f" (line {lines[-1]} of the template)" if lines else ""


def _texts(template: Any) -> list[str]:
    return [template] if isinstance(template, str) else list(dict(template).values())


def _any_harmony(template: Any) -> bool:
    return any(map(is_harmony, _texts(template)))


def word_forms(words: Sequence[str]) -> list[str]:
    """Stop or bad words in both of their forms, at the start of a word and inside a text; empty ones left out."""
    forms = [form for word in words if word for form in ((word,) if word[0].isspace() else (word, " " + word))]
    return list(dict.fromkeys(forms))


def _effort(request: PromptRequest, template: Any) -> dict[str, Any]:
    """`reasoning_effort` as the template knows it.

    Raises:
        InvalidRequestError: the template does not know it.
    """
    effort = request.reasoning_effort
    if effort is None:
        return {}
    texts = _texts(template)
    if _any_harmony(template):
        harmony.check_effort(effort)
    if any("reasoning_effort" in text for text in texts):
        return {"reasoning_effort": effort}
    # "medium" is OpenAI's default, hence as good as nothing; a model that does not think thinks as little as "none".
    if effort == "none" and any("enable_thinking" in text for text in texts):
        return {"enable_thinking": False}
    if effort in ("none", "medium"):
        return {}
    raise InvalidRequestError(
        'This model has no levels of reasoning: \'reasoning_effort\' may be left out, or be "none" or "medium".',
        param="reasoning_effort",
    )
