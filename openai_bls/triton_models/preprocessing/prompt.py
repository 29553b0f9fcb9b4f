"""Prompt encoder: chat template and tokenization, through transformers' own tokenizer classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.checkpoint import read_json
from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import InvalidRequestError, UnsupportedByModelError
from openai_bls.core.word_lists import WordList
from openai_bls.engines.images.processor import has_processor
from openai_bls.transport.ipc.prompts import SlowPromptError
from openai_bls.triton_models.preprocessing import encoding, rendering
from openai_bls.triton_models.preprocessing.content_forms import ContentForms
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimitError
from openai_bls.triton_models.preprocessing.images import ImagePrompt, ImagePrompts, LazyImagePrompts
from openai_bls.triton_models.preprocessing.request_templates import RequestTemplates
from openai_bls.triton_models.preprocessing.token_bound import token_bound

_QUICK_S = 0.1
"""CPU time, in seconds, beyond which a chat template is slow: others wait for the thread that renders it."""
# Characters up to which a text is never too large.
_SHORT_TEXT = 1 << 16


def load_tokenizer(tokenizer_dir: Path) -> Any:
    """Tokenizer of transformers that any thread may call.

    Raises:
        FileNotFoundError: `tokenizer_dir` is empty or missing.
    """
    if not tokenizer_dir.is_dir() or not any(tokenizer_dir.iterdir()):
        # transformers would take it for the name of a repository on the hub.
        raise FileNotFoundError(f"nothing at {tokenizer_dir}")
    # A second and 30 MB, even without torch: no process but preprocessing's pays for them.
    from transformers import AutoTokenizer

    # Said in so many words, since transformers asks on the terminal where nothing is said.
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True, trust_remote_code=False)
    # Some classes build the tokenizer anew and keep what they built it from: 50 MB for 150,000 tokens.
    for name in ("_vocab", "_merges"):
        vars(tokenizer).pop(name, None)
    # The first call may change how the tokenizer truncates and pads, which must not happen beside another's.
    tokenizer("")
    legacy = tokenizer_dir / "chat_template.json"
    if not tokenizer.chat_template and legacy.is_file():  # where processors of earlier releases have it
        tokenizer.chat_template = read_json(legacy).get("chat_template")
    # The length is checked against the engine's limit, with an error; a warning in the log helps nobody.
    tokenizer.model_max_length = 10**9
    return tokenizer


class PromptEncoder:
    """Turns conversations and texts into token ids.

    Args:
        tokenizer_dir: a tokenizer as `save_pretrained` writes it, with its chat template.
        max_prompt_bytes: the largest text to tokenize; None is no limit.
        cache_bytes: memory of the cache of tokens, which texts that begin alike share; 0 is none.
    """

    def __init__(
        self, tokenizer_dir: Path, max_prompt_bytes: Callable[[], int] | None = None, cache_bytes: int = 0
    ) -> None:
        self._tokenizer = load_tokenizer(tokenizer_dir)
        # With a tokenizer of its own, as some processors change theirs.
        self._images = LazyImagePrompts(
            lambda: ImagePrompts(tokenizer_dir, load_tokenizer(tokenizer_dir), self._render_checked)
        )
        self._contents = ContentForms(self._render_as_it_is) if has_processor(tokenizer_dir) else None
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        self._bound = token_bound(backend.to_str()) if backend is not None else None
        self._trusted = rendering.template_texts(self._tokenizer)
        self._request_templates = RequestTemplates(dict(self._tokenizer.special_tokens_map), max_prompt_bytes)
        self._encode = encoding.best_encoding(self._tokenizer, self._trusted, cache_bytes)
        self.special_tokens = encoding.special_tokens(self._encode)
        """Token ids that the tokenizer adds by itself before a text (a BOS, say), and after it."""
        self._max_prompt_bytes = max_prompt_bytes
        self.template_problem = rendering.problem(self._tokenizer, takes_images=self._contents is not None)
        """Why the model takes no conversations; None if it does, or if it has no chat template."""
        self.eos_token_id: int | None = self._tokenizer.eos_token_id
        self.pad_token_id: int | None = self._tokenizer.pad_token_id

    def close(self) -> None:
        """End the processes that render chat templates of requests."""
        self._request_templates.close()

    def load_processor(self) -> None:
        """Load what prompts with images need before the first one comes; raises `InvalidRequestError` if it cannot."""
        self._images.load()

    def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`; what the request did wrong comes back in the result."""
        try:
            return self._prepare(request, rendering.CPU_S)
        except CpuLimitError:
            return _refused(rendering.too_slow(request))

    def prepare_quickly(self, request: PromptRequest) -> PromptResult:
        """`prepare`, where a thread that others wait for does it.

        Raises:
            SlowPromptError: the chat template takes long or is the request's, or images do.
        """
        if self._is_a_clients(request.chat_template) or (request.image_sizes and not self._images.is_quick):
            raise SlowPromptError
        try:
            return self._prepare(request, _QUICK_S)
        except CpuLimitError:
            raise SlowPromptError from None

    def _prepare(self, request: PromptRequest, cpu_s: float) -> PromptResult:
        try:
            image_prompt = None
            if request.image_sizes:
                image_prompt = self._images.load().prepare(request, cpu_s)
                prompts = [image_prompt.token_ids]
            elif request.messages is not None:
                prompts = [self._encode_chat(request, cpu_s)]
            elif request.pairs is not None:
                return self._encode_pairs(request.pairs, request.max_prompt_tokens)
            else:
                special = request.add_special_tokens is not False
                texts = request.prompts or []
                for at, text in enumerate(texts):
                    param = f"prompt[{at}]" if len(texts) > 1 else "prompt"
                    self.check_length(text, request.max_prompt_tokens, param)
                prompts = [self.encode(text, add_special_tokens=special) for text in texts]
            bad_words = [list(word) for word in self.encode_words(request.bad_words)]
            prediction: list[int] = []
            if request.prediction is not None:
                self.check_length(request.prediction, None, "prediction")
                prediction = self.encode(request.prediction, add_special_tokens=False)
            result = PromptResult(prompts, bad_words, prediction)
            return result if image_prompt is None else self._with_images(result, request, image_prompt)
        except (InvalidRequestError, UnsupportedByModelError) as error:
            return _refused(error)

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None) -> PromptResult:
        """Prompts of pairs of texts, and where the second text of each begins by its token types."""
        prompts: list[list[int]] = []
        begins: list[int] = []
        for at, pair in enumerate(pairs):
            for text in pair:
                self.check_length(text, max_tokens, f"prompt[{at}]" if len(pairs) > 1 else "prompt")
            found = self._tokenizer(*pair)
            prompts.append(found["input_ids"])
            if "token_type_ids" in found:
                types = found["token_type_ids"]
                begins.append(types.index(1) if 1 in types else len(types))
        return PromptResult(prompts, compressed_token_type_ids=begins)

    def _with_images(self, result: PromptResult, request: PromptRequest, prompt: ImagePrompt) -> PromptResult:
        """`result` with both forms of a prompt with images."""
        return msgspec.structs.replace(
            result,
            media_text=prompt.text,
            media_token_ids=self.encode(prompt.text, add_special_tokens=request.add_special_tokens is True),
            image_tokens=prompt.image_tokens,
        )

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
        rendering.check_size(text, self._max_prompt_bytes(), param)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of raw text.

        Args:
            text: text to tokenize.
            add_special_tokens: whether the tokenizer adds its own special tokens, such as a BOS.
        """
        return self._encode(text, add_special_tokens)

    def encode_words(self, words: Sequence[str]) -> WordList:
        """Stop or bad words as token sequences, each in both of its forms: at the start of a word and inside a text.

        A word may be tokenized differently in context all the same: openai_bls matches stop strings in text instead.
        """
        encoded = (tuple(self.encode(form, add_special_tokens=False)) for form in word_forms(words))
        return [ids for ids in dict.fromkeys(encoded) if ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special ones included."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _encode_chat(self, request: PromptRequest, cpu_s: float) -> list[int]:
        text = self._render_checked(request, cpu_s)
        return self.encode(text, add_special_tokens=request.add_special_tokens is True)

    def _render_checked(self, request: PromptRequest, cpu_s: float) -> str:
        text = self._render(request, cpu_s)
        self.check_length(text, request.max_prompt_tokens, "messages")
        return text

    def render(self, request: PromptRequest) -> str:
        """Text of the conversation in `request`, by the chat template.

        Raises:
            InvalidRequestError: there is no template, it does not render the messages, or it takes too long.
            UnsupportedByModelError: it renders none.
        """
        try:
            return self._render(request, rendering.CPU_S)
        except CpuLimitError:
            raise rendering.too_slow(request) from None

    def _render(self, request: PromptRequest, cpu_s: float) -> str:
        if self.template_problem is not None and not request.chat_template:
            raise rendering.unsupported(self.template_problem)
        if self._contents is not None:
            request = self._contents.fitting(request)
        return self._render_as_it_is(request, cpu_s)

    def _render_as_it_is(self, request: PromptRequest, cpu_s: float) -> str:
        if self._is_a_clients(request.chat_template):
            return self._request_templates.render(request)
        return rendering.render(self._tokenizer, request, cpu_s)

    def _is_a_clients(self, template: str | None) -> bool:
        """True for a template that is not of the checkpoint."""
        return bool(template) and template not in self._trusted and template != self._images.template


def _refused(error: InvalidRequestError | UnsupportedByModelError) -> PromptResult:
    unsupported = isinstance(error, UnsupportedByModelError)
    return PromptResult(error=error.message, param=error.param, code=error.code, unsupported=unsupported)


def word_forms(words: Sequence[str]) -> list[str]:
    """Stop or bad words in both of their forms, at the start of a word and inside a text; empty ones left out."""
    forms = [form for word in words if word for form in ((word,) if word[0].isspace() else (word, " " + word))]
    return list(dict.fromkeys(forms))
