"""Log-probabilities as OpenAI writes them, for chat completions and for completions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from openai_bls.api.common.encoding import encode
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.output.detokenizer.base import DetokenizerFactory

# JSON has no infinity; other servers send this number for a token that cannot be.
_IMPOSSIBLE = -9999.0


class LogprobRenderer:
    """Writes the log-probabilities of one request. A long prompt that is echoed has many, and all at once.

    Args:
        detokenizers: detokenizers of the request's model.
        chat: chat completions' form, else completions'.
    """

    def __init__(self, detokenizers: DetokenizerFactory, *, chat: bool) -> None:
        self._text = functools.cache(detokenizers.token_text)
        # The raw bytes: several tokens may share a character, and then none of them is text.
        self._bytes = functools.cache(lambda token_id: list(detokenizers.token_bytes(token_id)))
        self._chat = chat

    def render(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`choice.logprobs` for a run of tokens; runs that follow each other can be joined list by list."""
        return self._render_chat(tokens) if self._chat else self._render_completion(tokens)

    def encoded(self, tokens: Sequence[TokenLogprob]) -> list[Raw]:
        """The items of `content` in chat completions' form as JSON text, one for each token."""
        return [Raw(encode(item)) for item in self._render_chat(tokens)["content"]]

    def _render_chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        text, raw = self._text, self._bytes
        content = []
        for token in tokens:
            top = [{"token": text(at), "logprob": _finite(logprob), "bytes": raw(at)} for at, logprob in token.top]
            own = {"token": text(token.token_id), "logprob": _number(token.logprob), "bytes": raw(token.token_id)}
            content.append({**own, "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _render_completion(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {
            "tokens": [self._text(token.token_id) for token in tokens],
            "token_logprobs": [_number(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top = {self._text(token_id): _finite(logprob) for token_id, logprob in token.top}
        # With the token itself, wherever it ranks: so it is at OpenAI, and hence up to logprobs + 1 of them.
        top[self._text(token.token_id)] = _finite(token.logprob)
        return top


class CollectedLogprobs:
    """`choice.logprobs` of a whole answer, encoded as the tokens come: all at its end would take long.

    Args:
        renderer: renderer of the request.
    """

    def __init__(self, renderer: LogprobRenderer) -> None:
        self._renderer = renderer
        # JSON text of the lists, without its last bracket.
        self._lists: dict[str, bytearray] = {}
        self._others: dict[str, Any] = {}
        self.add([])

    def add(self, tokens: Sequence[TokenLogprob]) -> int:
        """Add the next tokens; bytes that are kept of them."""
        size = 0
        for name, value in self._renderer.render(tokens).items():
            if isinstance(value, list):
                text = self._lists.setdefault(name, bytearray(b"["))
                if value:
                    text += b"," if len(text) > 1 else b""
                    added = encode(value)[1:-1]
                    text += added
                    size += len(added)
            else:
                self._others[name] = value
        return size

    def answer(self) -> dict[str, Any]:
        """The whole of it, whose lists are JSON text. Asked for once: no copy is made of what is large."""
        for text in self._lists.values():
            text.extend(b"]")
        return {**{name: Raw(text) for name, text in self._lists.items()}, **self._others}


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else _finite(logprob)


def _finite(logprob: float) -> float:
    # A comparison and no call of max: there are many.
    return logprob if logprob > _IMPOSSIBLE else _IMPOSSIBLE
