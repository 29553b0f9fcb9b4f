"""Health check of the container, without a generated token.

    python3 docker/health.py        exit status 0, or 1 with a line that names what failed

/health of /v1 asks the models for an answer, over connections of its own: before 26.04 Triton's health endpoints go on
saying 200 when a model's process has died, and a second request to one that is stopped ends the whole server. Where /v1
is off, a word is tokenized. The ports, and whether /v1 speaks HTTPS, come from the variables that the server itself
reads: set these, not its flags, where they are to be others.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys

_HTTP_PORT = int(os.environ.get("OPENAI_BLS_TRITON_HTTP_PORT", "8000"))
_OPENAI_PORT = int(os.environ.get("OPENAI_BLS_HTTP_PORT", "9000"))
_KEY = os.environ.get("OPENAI_BLS_API_KEY")
_TLS = bool(os.environ.get("OPENAI_BLS_SSL_CERTFILE"))

# Below the time that Docker gives the whole check.
_TIMEOUT_SECONDS = 3.0


def ask(port: int, method: str, path: str, body: object = None, *, tls: bool = False) -> None:
    """Send one request.

    Raises:
        OSError: no connection, no answer in time, or a status other than 200; but a key that is not known here may be
            asked for.
        HTTPException: what came back is not HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    if tls:
        # The certificate is of the server's public name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS, context=context)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read(500).decode(errors="replace")
        # One that asks for a key which is not known here answers; more cannot be asked.
        if response.status != 200 and (_KEY or "invalid_api_key" not in text):
            raise OSError(f"{response.status}: {text}")
    finally:
        connection.close()


def main() -> int:
    """Ask all of them; returns the exit status."""
    requests: list[tuple[str, int, str, str, object]] = [("Triton", _HTTP_PORT, "GET", "/v2/health/live", None)]
    if _OPENAI_PORT != 0:
        requests.append(("/v1", _OPENAI_PORT, "GET", "/health", None))
    else:
        tokenize = {"endpoint": "tokenize", "prompt": "alive"}
        if _KEY:
            tokenize["api_key"] = _KEY
        requests.append(("openai_bls or preprocessing", _HTTP_PORT, "POST", "/v2/models/openai_bls/generate", tokenize))
    for name, port, method, path, body in requests:
        try:
            ask(port, method, path, body, tls=_TLS and port == _OPENAI_PORT)
        except (OSError, http.client.HTTPException) as error:
            print(f"{name} on port {port} is not well: {' '.join(str(error).split())}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
