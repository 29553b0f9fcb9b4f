"""The reference page at /docs: how it begins, and whose models its examples name."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from openai_bls.api.openapi.document import document
from openai_bls.api.openapi.page import page
from openai_bls.api.registry import BY_TITLE

ENGINE = {"demo": ("generate", "embeddings")}
TASKS = {"ranker": ("rerank",), "judge": ("classify",), "speaker": ("speech",), "hearer": ("transcription",)}


def made(served: Mapping[str, Sequence[str]], *, has_keys: bool = False) -> tuple[dict[str, Any], str]:
    """The document and the page, as text."""
    found = document(BY_TITLE, has_keys=has_keys, has_guards=False, served=served)
    return found, html.unescape(page(found, served).decode())


def example(found: dict[str, Any], path: str) -> Any:
    (content,) = found["paths"][path]["post"]["requestBody"]["content"].values()
    return content.get("example")


def test_it_begins_with_what_the_server_is_and_how_to_ask_it() -> None:
    _, text = made({**ENGINE, **TASKS})
    main = text[text.index("<main>") :]
    first = main[: main.index('id="chat.completions"')]
    assert "Triton Inference Server that answers OpenAI's API" in first
    assert "<code>demo</code> (chat and text, embeddings), <code>ranker</code> (rerank and score)" in first
    assert '"model": "demo", "messages"' in first
    assert 'model="demo"' in first
    assert 'href="./"' in first


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "demo"),
        ("/v1/messages", "demo"),
        ("/v1/embeddings", "demo"),
        ("/v1/rerank", "ranker"),
        ("/v1/score", "ranker"),
        ("/v1/moderations", "judge"),
        ("/v1/audio/speech", "speaker"),
        ("/v1/audio/transcriptions", "hearer"),
    ],
)
def test_examples_name_a_model_that_serves_them(path: str, name: str) -> None:
    found, text = made({**ENGINE, **TASKS})
    assert example(found, path)["model"] == name
    assert "No model of this server serves it" not in text


def test_examples_that_no_model_serves_are_left_out() -> None:
    found, text = made({"demo": ("generate",)})
    unserved = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/moderations", "/v1/classify", "/v1/audio/speech")
    unserved_forms = ("/v1/audio/transcriptions", "/v1/audio/translations")
    for path in (*unserved, *unserved_forms):
        assert example(found, path) is None
        assert found["paths"][path]["post"]["x-unserved"] is True
    assert text.count("No model of this server serves it") == len(unserved) + len(unserved_forms)
    assert not re.search(r"curl \S+/v1/(rerank|score|moderations|embeddings)", text)
    # curl has a meaning of its own for braces.
    assert not re.search(r"curl \S*\{", text)
    assert "curl http://localhost:9000/v1/models/demo" in text


@pytest.mark.parametrize("has_keys", [False, True])
def test_requests_that_the_page_sends_are_those_that_it_shows(has_keys: bool) -> None:
    """Every figure of an endpoint has the parts of its curl line, but for files of the visitor's machine."""
    found = document(BY_TITLE, has_keys=has_keys, has_guards=False, served={**ENGINE, **TASKS})
    text = page(found, {**ENGINE, **TASKS}).decode()
    tried = 0
    for attributes, code in re.findall(r"<figure([^>]*)>.*?<code>(.*?)</code>", text, re.DOTALL):
        parts = {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', attributes)}
        words = shlex.split(html.unescape(code).replace("\\\n", " ")) if "import" not in code else []
        assert bool(parts) == ("curl" in words and "-F" not in words and "What is a KV cache?" not in code)
        if parts:
            tried += 1
            assert words[1] == f"http://localhost:9000{parts['path']}"
            assert parts.get("body") == (words[words.index("-d") + 1] if "-d" in words else None)
            method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
            assert parts["method"] == method
            assert ("keys" in parts) == ("Authorization: Bearer $OPENAI_API_KEY" in words)
    assert tried > 40


def test_with_keys_no_model_is_named() -> None:
    """For the page itself needs no key."""
    found, text = made({**ENGINE, **TASKS, "second": ("classify",)}, has_keys=True)
    for name in (*ENGINE, *TASKS, "second"):
        assert f'"{name}"' not in json.dumps(found)
        assert f"{name}<" not in text
        assert f'"{name}"' not in text
    assert "Authorization: Bearer $OPENAI_API_KEY" in text
    # Without a name the only model of the task answers, or none.
    assert "model" not in example(found, "/v1/rerank")
    assert example(found, "/v1/moderations") is None
