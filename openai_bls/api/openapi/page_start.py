"""Beginning of the reference page: what the server is, which models it serves, and how to ask it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

ORIGIN = "http://localhost:9000"
"""Server of the commands; the page's script puts its own in place of it."""

_TASKS = {
    "generate": "chat and text",
    "chat": "chat",
    "embeddings": "embeddings",
    "rerank": "rerank and score",
    "score": "rerank and score",
    "classify": "classify and moderations",
    "reward": "classify",
    "speech": "speech",
    "transcription": "transcriptions",
}
"""Task of a model → what to ask it for."""
_MOST_MODELS = 20
"""Models that the page lists."""


def start(document: dict[str, Any], served: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The first section.

    Args:
        document: description that `openapi.document` makes.
        served: name → tasks of the served models, the default first.
    """
    has_keys = "security" in document
    yield '<section id="start"><h2>What this is</h2>'
    yield (
        "<p>A Triton Inference Server that answers OpenAI's API by itself: chat completions, Responses, embeddings and "
        "what is listed here, and Anthropic's Messages. Programs that know OpenAI work with it when their base URL is "
        f"<code data-origin>{ORIGIN}/v1</code>; those that know Anthropic take <code data-origin>{ORIGIN}</code>. "
        'To try it without a program, there is the <a href="./">playground</a>.</p>'
    )
    if has_keys:
        yield "<p>Requests need an API key of this server. With one, <code>GET /v1/models</code> lists the models.</p>"
    else:
        yield "<p>No key is needed. " + _models(served) + "</p>"
    yield "<h2>Ask it</h2>"
    # A document that is read without a key names no models.
    model = (
        None if has_keys else next((name for name, tasks in served.items() if {"generate", "chat"} & set(tasks)), None)
    )
    yield figure(_curl(model, has_keys=has_keys))
    yield "<p>The same in Python, with the package <code>openai</code>; <code>stream=True</code> has it in pieces:</p>"
    yield figure(_python(model, has_keys=has_keys))
    yield "</section>"


def figure(code: str, request: Mapping[str, str] | None = None) -> str:
    """Code with a button that copies it.

    Args:
        code: the code.
        request: parts of the request in it, which the page's script sends: its method, path and body, and `keys`
            where it needs one; None is none that a browser can send.
    """
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in (request or {}).items())
    buttons = '<div class="buttons"><button type="button" class="copy">Copy</button></div>'
    return f'<figure{data}>{buttons}<pre tabindex="0"><code>{escape(code)}</code></pre></figure>'


def _models(served: Mapping[str, Sequence[str]]) -> str:
    listed = [
        f"<code>{escape(name)}</code> ({escape(', '.join(_TASKS.get(task, task) for task in tasks))})"
        for name, tasks in list(served.items())[:_MOST_MODELS]
    ]
    more = f" and {len(served) - _MOST_MODELS} more" if len(served) > _MOST_MODELS else ""
    return f"It serves {', '.join(listed)}{more}."


def _curl(model: str | None, *, has_keys: bool) -> str:
    named = f'"model": "{model}", ' if model is not None else ""
    words = [f"curl {ORIGIN}/v1/chat/completions", "-H 'Content-Type: application/json'"]
    if has_keys:
        words.append('-H "Authorization: Bearer $OPENAI_API_KEY"')
    words.append(f"""-d '{{{named}"messages": [{{"role": "user", "content": "What is a KV cache?"}}]}}'""")
    return " \\\n  ".join(words)


def _python(model: str | None, *, has_keys: bool) -> str:
    key = "" if has_keys else ', api_key="none"'
    note = "  # the key is that of OPENAI_API_KEY" if has_keys else ""
    named = "client.models.list().data[0].id" if model is None else f'"{model}"'
    return (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{ORIGIN}/v1"{key}){note}\n'
        "answer = client.chat.completions.create(\n"
        f"    model={named},\n"
        '    messages=[{"role": "user", "content": "What is a KV cache?"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
