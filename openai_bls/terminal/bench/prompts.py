"""Prompts of random words, whose number of tokens is found by asking the server."""

from __future__ import annotations

import random
from typing import Any

import httpx

from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.connection import Connection, refusal, unreachable

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work night point home water room mother area money story fact
month lot right study book eye job word business issue side kind head house service friend father power hour game
line end member law car city name team minute idea body back parent face level office door health person art
"""
_PROBE_WORDS = (16, 64)


class Prompts:
    """Random words, as many as make `tokens` tokens with what the chat template adds.

    Args:
        tokens: tokens of a prompt.
        seed: seed of the words.
    """

    def __init__(self, tokens: int, seed: int) -> None:
        self._tokens = tokens
        self._random = random.Random(seed)
        self.words = tokens

    def fit(self, server: Connection, model: str) -> None:
        """Find how many words make a prompt, from what the server counts for two short ones.

        Raises:
            LaunchError: it refuses them, or cannot be reached. One that counts nothing is sent a word for each token.
        """
        counted = [_prompt_tokens(server, model, self._of(words)) for words in _PROBE_WORDS]
        few, many = counted
        if few is None or many is None or many <= few:
            return
        for_each = (many - few) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
        added = few - for_each * _PROBE_WORDS[0]
        self.words = max(1, round((self._tokens - added) / for_each))

    def next(self) -> str:
        """A prompt that no other begins like: a prefix cache finds nothing of it."""
        return self._of(self.words)

    def _of(self, words: int) -> str:
        return " ".join(self._random.choices(_TEXT.split(), k=words))


def _prompt_tokens(server: Connection, model: str, prompt: str) -> int | None:
    """Tokens of a prompt as `usage` counts them."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    try:
        answer = httpx.post(
            f"{server.url}/chat/completions",
            json=body,
            headers=server.headers,
            timeout=server.timeout,
            verify=server.tls,
        )
    except httpx.HTTPError as error:
        raise LaunchError(unreachable(server.url, error)) from None
    try:
        found = answer.json()
    except ValueError:
        found = None
    if answer.status_code != 200:
        raise LaunchError(refusal(server, answer.status_code, found))
    usage = found.get("usage") if isinstance(found, dict) else None
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None
