"""Example commands, printed when the server is ready."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from openai_bls.launcher.checks import OPENAI_MODEL
from openai_bls.launcher.readiness import serves_openai
from openai_bls.launcher.tritonserver.ports import local_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openai_bls.launcher.tritonserver.ports import Ports

KEY_VARIABLE = "OPENAI_BLS_API_KEY"
_KEY = "<key>"
"""Stands for the key until its variable does."""
_QUESTION = "What is machine learning?"
"""One that small models can answer, too."""
_CHAT = [{"role": "user", "content": _QUESTION}]


def examples(
    host: str, ports: Ports, names: Sequence[str], model: str, triton_host: str = "", *, keys: bool = False
) -> str:
    """Commands for what this repository serves.

    Args:
        host: address of /v1.
        ports: ports of the server.
        names: names of the models in the repository.
        model: name for OpenAI clients.
        triton_host: address of Triton's own ports; empty is that of /v1.
        keys: requests must have an API key, which the commands take from the environment.
    """
    key = {"api_key": _KEY} if keys else {}
    triton = f"http://{local_host(triton_host or host)}:{ports.http}/v2"
    base = f"{ports.openai_root(host)}/v1"
    parts = []
    if serves_openai(names, ports):
        chat: dict[str, object] = {"model": model, "messages": _CHAT, "max_tokens": 64, "temperature": 0}
        title = "OpenAI API"
        if ports.tls:
            title += ", by the name in its certificate; for a CA of your own: curl --cacert FILE, or SSL_CERT_FILE=FILE"
        if ports.client_certificates:
            title += "; with a certificate of the client: curl --cert FILE --key FILE"
        parts.append((title, _curl("-s", f"{base}/chat/completions", chat, keys=keys)))
        parts.append(("OpenAI API, Python", _python(base, chat, keys=keys)))
    if OPENAI_MODEL in names:
        # An array of objects cannot pass Triton's generate endpoint, so `messages` is JSON text.
        body = {"messages": json.dumps(_CHAT), "max_tokens": 64, "temperature": 0, "stream": True, **key}
        # The role chunk has no content, and jq must not wait for the end of its input.
        delta = (
            "sed -un 's/^data: //p' | jq --unbuffered -rj '.response | fromjson | .choices[0].delta.content // empty'"
        )
        streamed = _curl("-sN", f"{triton}/models/{OPENAI_MODEL}/generate_stream", body)
        parts.append(("Triton", f"{streamed} \\\n  | {delta}"))
    elif "ensemble" in names:
        body = {"text_input": _QUESTION, "max_tokens": 64, **key}
        url = f"{triton}/models/ensemble/generate"
        parts.append(("Triton", f"{_curl('-s', url, body)} \\\n  | jq -r .text_output"))
    return "\n\n".join(f"# {title}\n{text}" for title, text in parts)


def _python(base: str, chat: dict[str, object], *, keys: bool) -> str:
    """A program as it is: no line of it is left to the reader."""
    key = f'os.environ["{KEY_VARIABLE}"]' if keys else '"none"'
    fields = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in chat.items())
    return (
        f"import {'os, ' if keys else ''}openai\n"
        f'client = openai.OpenAI(base_url="{base}", api_key={key})\n'
        f"print(client.chat.completions.create({fields}).choices[0].message.content)"
    )


def _curl(options: str, url: str, body: object, *, keys: bool = False) -> str:
    # curl's default type is a form, which tritonserver reads too, but a large one crashes it.
    text = json.dumps(body).replace("'", r"'\''").replace(_KEY, f"'\"${KEY_VARIABLE}\"'")
    header = f' -H "authorization: Bearer ${KEY_VARIABLE}"' if keys else ""
    return f"curl {options} {url}{header} \\\n  -H 'content-type: application/json' -d '{text}'"
