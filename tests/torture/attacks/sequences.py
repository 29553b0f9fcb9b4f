"""Attacks by sequences: `n`, `best_of`, lists of prompts and of texts to embed, and programs for a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.torture.attacks.alice import Alice

_CHOICES = 128
_TOKENS = 200
_INPUTS = 2048
_PROMPT_TOKENS = 1800
"""Most of the context of the demo."""
_BIAS = {str(token): 1 for token in range(400)}
_MESSAGES = [{"role": "user", "content": "Count to a hundred."}]


def _from_some(alice: Alice, body: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    def attack() -> None:
        while not alice.over():
            path, asked = body()
            alice.post(path, asked)

    alice.at_once([attack] * alice.rng.choice([1, 1, 2, 8, 32]))


def choices(alice: Alice) -> None:
    """Requests of many choices."""

    def body() -> tuple[str, dict[str, Any]]:
        n, stream = alice.near(_CHOICES), alice.rng.random() < 0.5
        alice.note(f"n = {n}")
        return "/v1/chat/completions", {
            "messages": _MESSAGES,
            "n": n,
            "max_tokens": _TOKENS,
            "stream": stream,
            "temperature": 1,
            "ignore_eos": True,
        }

    _from_some(alice, body)


def prompts(alice: Alice) -> None:
    """Lists of prompts, with `n` and `best_of`."""

    def body() -> tuple[str, dict[str, Any]]:
        count, n = alice.near(_CHOICES // 2), alice.rng.choice([1, 1, 2, 4])
        best_of = alice.rng.choice([None, None, n, 8, 128])
        prompt: list[Any] = alice.rng.choice([["Hello"] * count, [[1, 2, 3]] * count, [1] * min(count, 1000)])
        further = {} if best_of is None else {"best_of": best_of}
        alice.note(f"{count} prompts, n = {n}, best_of = {best_of}")
        asked = {"prompt": prompt, "n": n, "max_tokens": _TOKENS, "temperature": 1, "ignore_eos": True, **further}
        return "/v1/completions", asked

    _from_some(alice, body)


def long_prompts(alice: Alice) -> None:
    """Prompts of up to the model's context, none of which begins as another, from many clients at once."""

    def body() -> tuple[str, dict[str, Any]]:
        length = alice.near(_PROMPT_TOKENS)
        prompt = [alice.rng.randrange(10, 200) for _ in range(length)]
        alice.note(f"a prompt of {length} tokens")
        return "/v1/completions", {"prompt": prompt, "max_tokens": alice.rng.choice([1, 8]), "ignore_eos": True}

    _from_some(alice, body)


def large_answers(alice: Alice) -> None:
    """Answers that repeat long prompts, and such as have the log-probabilities of all that is generated."""

    def body() -> tuple[str, dict[str, Any]]:
        n, length = alice.near(_CHOICES), alice.near(_PROMPT_TOKENS)
        alice.note(f"n = {n} with a prompt of {length} tokens")
        prompt = [alice.rng.randrange(10, 200) for _ in range(length)]
        much: dict[str, Any] = alice.rng.choice([
            {"prompt": prompt, "n": n, "echo": True, "max_tokens": 0},
            {"prompt": [prompt] * n, "echo": True, "max_tokens": 1},
            {"prompt": prompt[:9], "n": n, "max_tokens": length},
            {"prompt": prompt[:9], "best_of": n, "n": 1, "max_tokens": length},
        ])  # fmt: skip
        stream = "best_of" not in much and alice.rng.random() < 0.3
        return "/v1/completions", {"logprobs": 20, "ignore_eos": True, "stream": stream, **much}

    _from_some(alice, body)


def inputs(alice: Alice) -> None:
    """Texts to embed, to rank and to count."""

    def body() -> tuple[str, dict[str, Any]]:
        count, size = alice.near(_INPUTS), alice.rng.choice([1, 10, 1000])
        texts = ["a " * size] * min(count, (8 << 20) // size)
        alice.note(f"{len(texts)} inputs of {size} words")
        ways: list[tuple[str, dict[str, Any]]] = [
            ("/v1/embeddings", {"input": texts}),
            ("/v1/embeddings", {"input": [[1] * size] * min(count, 300_000 // size)}),
            ("/v1/rerank", {"query": "a", "documents": texts}),
            ("/v1/responses/input_tokens", {"input": [{"role": "user", "content": one} for one in texts]}),
        ]
        return alice.rng.choice(ways)

    _from_some(alice, body)


def labels(alice: Alice) -> None:
    """Questions with many labels, long ones, and such as begin alike."""

    def body() -> tuple[str, dict[str, Any]]:
        count, questions = alice.near(255), alice.near(8)
        stem = alice.rng.choice(["", "a ", "a " * 100])
        choices = [{"value": f"{stem}{number}"} for number in range(count)]
        question = {"type": "choice", "instructions": "Which?", "choices": choices}
        alice.note(f"{questions} questions with {count} labels of {len(stem)} characters and a number")
        return "/v1/decisions", {"input": "a " * alice.rng.choice([1, 1000]), "questions": [question] * questions}

    _from_some(alice, body)


_PROGRAMS: tuple[Callable[[int], str], ...] = (
    lambda size: f"{{{{ 'a' * {size} }}}}",
    lambda size: f"{{{{ ('a' * {size}) | length }}}}",
    lambda size: f"{{{{ range({size}) | list | sort | length }}}}",
    lambda size: f"{{% for x in range({size}) %}}{{% for y in range({size}) %}}{{% endfor %}}{{% endfor %}}",
    lambda size: (
        f"{{% set x = namespace(s='a') %}}{{% for y in range({size}) %}}{{% set x.s = x.s ~ x.s %}}{{% endfor %}}"
    ),
    lambda size: f"{{{{ {'9' * min(size, 4000)} ** {min(size, 10**6)} }}}}",
    lambda size: "{{ " + "(" * min(size, 3000) + "1" + ")" * min(size, 3000) + " }}",
    lambda size: "{% if 1 %}" * min(size, 20_000) + "{% endif %}" * min(size, 20_000),
)


def templates(alice: Alice) -> None:
    """Programs in the place of the chat template, for memory and for time."""

    def body() -> tuple[str, dict[str, Any]]:
        text = alice.rng.choice(_PROGRAMS)(10 ** alice.rng.randint(2, 9))
        alice.note(f"the template {text[:100]!r}")
        return "/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 1, "chat_template": text}

    def attack() -> None:
        while not alice.over():
            path, asked = body()
            # Some clients leave early.
            alice.post(path, asked, alice.rng.choice([0.2, None, None]))

    alice.at_once([partial(attack)] * alice.rng.choice([1, 2, 8]))


def large_bodies(alice: Alice) -> None:
    """Bodies of many values, each of which is decoded in a thread, and long lists of texts."""
    pairs = {"text_1": "a " * _PROMPT_TOKENS, "text_2": ["b"] * _INPUTS}
    ways = [
        ("/v1/completions", json.dumps({"prompt": [1] * 300_000}).encode()),
        ("/v1/embeddings", json.dumps({"input": [[1] * 1000] * 300}).encode()),
        ("/v1/completions", json.dumps({"prompt": ["a " * _PROMPT_TOKENS] * _CHOICES, "max_tokens": 1}).encode()),
        ("/v1/score", json.dumps(pairs).encode()),
        ("/detokenize", json.dumps({"tokens": [65] * 300_000}).encode()),
        ("/v1/chat/completions", json.dumps({"messages": _MESSAGES, "logit_bias": _BIAS, "n": _CHOICES}).encode()),
    ]
    ways = alice.rng.choice([*([way] for way in ways), ways])

    def attack() -> None:
        while not alice.over():
            path, text = alice.rng.choice(ways)
            alice.note(f"{path}, {len(text)} bytes")
            alice.post(path, text)

    alice.at_once([attack] * alice.rng.choice([8, 64, 200]))


def carried(alice: Alice) -> None:
    """What each of many sequences carries: biases, words that are forbidden."""

    def body() -> tuple[str, dict[str, Any]]:
        n, count = alice.near(_CHOICES), alice.rng.choice([1, 300, 2000])
        alice.note(f"n = {n} with {count} biases, or forbidden words of {count // 2} characters")
        much: dict[str, Any] = alice.rng.choice([
            {"logit_bias": {f"{at}": -1.5 for at in range(count)}},
            {"bad_words": [f"{at}" + "語 " * min(499, count // 2) for at in range(256)]},
            {"logprobs": True, "top_logprobs": 20},
            {"stop": [chr(0x4E00 + at) * min(1000, count) for at in range(16)]},
        ])  # fmt: skip
        return "/v1/chat/completions", {
            "messages": _MESSAGES,
            "n": n,
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            **much,
        }

    _from_some(alice, body)
