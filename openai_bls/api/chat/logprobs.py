"""Log-probabilities as OpenAI writes them, for chat completions and for completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.core.logprobs import TokenLogprob
from openai_bls.output.detokenizer.base import DetokenizerFactory

# JSON has no infinity; other servers send this number for a token that cannot be.
_IMPOSSIBLE = -9999.0


class LogprobRenderer:
    """Writes the log-probabilities of one request. A long prompt that is echoed has many, and all at once.

    Args:
        detokenizers: of the request's model.
        chat: chat completions' form, else completions'.
    """

    def __init__(self, detokenizers: DetokenizerFactory, *, chat: bool) -> None:
        self._texts = _Texts(detokenizers)
        self._named = _Named(detokenizers)
        self._chat = chat

    def render(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`choice.logprobs` for a run of tokens; runs that follow each other can be joined list by list."""
        return self._render_chat(tokens) if self._chat else self._render_completion(tokens)

    def _render_chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        named = self._named
        content = []
        for token in tokens:
            top = []
            for token_id, logprob in token.top:
                text, raw = named[token_id]
                top.append({"token": text, "logprob": _finite(logprob), "bytes": raw})
            text, raw = named[token.token_id]
            content.append({"token": text, "logprob": _number(token.logprob), "bytes": raw, "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _render_completion(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        texts = self._texts
        return {
            "tokens": [texts[token.token_id] for token in tokens],
            "token_logprobs": [_number(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        texts = self._texts
        top = {texts[token_id]: _finite(logprob) for token_id, logprob in token.top}
        # With the token itself, wherever it ranks: so it is at OpenAI, and hence up to logprobs + 1 of them.
        top[texts[token.token_id]] = _finite(token.logprob)
        return top


class _Texts(dict[int, str]):
    """The text of each token that has been asked for."""

    def __init__(self, detokenizers: DetokenizerFactory) -> None:
        super().__init__()
        self._detokenizers = detokenizers

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._detokenizers.token_text(token_id)
        return text


class _Named(dict[int, tuple[str, list[int]]]):
    """The text of each token that has been asked for, and its bytes."""

    def __init__(self, detokenizers: DetokenizerFactory) -> None:
        super().__init__()
        self._detokenizers = detokenizers

    def __missing__(self, token_id: int) -> tuple[str, list[int]]:
        # The raw bytes: several tokens may share a character, and then none of them is text.
        raw = list(self._detokenizers.token_bytes(token_id))
        named = self[token_id] = self._detokenizers.token_text(token_id), raw
        return named


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else _finite(logprob)


def _finite(logprob: float) -> float:
    # A comparison and no call of max: there are many.
    return logprob if logprob > _IMPOSSIBLE else _IMPOSSIBLE
