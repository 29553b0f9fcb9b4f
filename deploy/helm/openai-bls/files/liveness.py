"""Whether this server still does its work: asked by the liveness probe, in the container that is restarted if not.

Triton's own health before 26.04 calls a model whose process has died ready, and /health of /v1 goes by what the engine
says of itself, which one that is stuck does not. So: if the engine has moved on since the last probe, all is
well, and nothing is asked of it, however long its queue is. If it has not, it is idle or stuck, and a request for one
token tells which. Where that is refused, because keys are in a file or clients need a certificate, the server's own
/health and /metrics tell, which need neither: an engine is stuck that has made nothing since the last probe, while
there were requests at both.

Where the engine has a container of its own, each container is asked about its own part. `--of server`: /v1 answers at
all, whatever the engine does. `--of engine`: as above by /metrics; a server that does not answer is not the engine's
fault.

Usage: liveness.py PORT TIMEOUT_SECONDS [STATE_FILE] [--of both|server|engine] [--https]

PORT is that of /v1, which speaks HTTPS if OPENAI_BLS_SSL_CERTFILE or --https says so. The exit code is 0 if the server
lives, and 1 with a line on standard error if it does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
from pathlib import Path

_STATE_FILE = "/tmp/openai_bls-liveness.json"

# Each grows while the engine works and at no other time: requests that end with an error are not counted. Tokens of
# ended requests are among them for engines that do not tell their steps.
COUNTERS = (
    "openai_bls_engine_steps_total",
    "openai_bls_engine_generated_tokens_total",
    "openai_bls_generation_tokens_total",
)
_HTTPS = bool(os.environ.get("OPENAI_BLS_SSL_CERTFILE")) or "--https" in sys.argv
# Requests that are being prepared or generated.
_IN_PROGRESS = "openai_bls_requests_in_progress"


class NotAliveError(Exception):
    """The server does not do its work; the message says how that was found."""


def check(port: int, timeout: float, state: Path) -> None:
    """Ask the server whose /v1 listens on `port`.

    Raises:
        NotAliveError: it does not work.
    """
    progress = _progress(port, timeout)
    before = _read(state)
    # Only more than before is work: an engine that is gone, or loaded again, has less.
    if not any(progress[name] > before.get(name, progress[name]) for name in COUNTERS):
        body = {"prompt": "1", "max_tokens": 1}
        status, answer = _fetch(port, timeout, "POST", "/v1/completions", json.dumps(body))
        if status == 401:
            _check_unasked(port, timeout, before, progress)
        # Another refusal was read and judged; whether the engine works is told by 5xx alone.
        elif status >= 500:
            raise NotAliveError(
                f"a request for one token was answered {status}: {answer[:200].decode(errors='replace')}"
            )
        progress = _progress(port, timeout)
    state.write_text(json.dumps(progress), encoding="utf-8")


def check_server(port: int, timeout: float) -> None:
    """Ask whether /v1 answers.

    Raises:
        NotAliveError: it does not.
    """
    _fetch(port, timeout, "GET", "/metrics")


def check_engine(port: int, timeout: float, state: Path) -> None:
    """Judge the engine by what the server tells of it.

    Raises:
        NotAliveError: requests wait for an engine that is stuck.
    """
    try:
        now = _progress(port, timeout)
    except NotAliveError:
        # The server starts again, or has to: its own probe sees to that.
        state.unlink(missing_ok=True)
        return
    before = _read(state)
    if not any(now[name] > before.get(name, now[name]) for name in COUNTERS):
        _check_waiting(before, now)
    state.write_text(json.dumps(now), encoding="utf-8")


def _check_unasked(port: int, timeout: float, before: dict[str, float], now: dict[str, float]) -> None:
    """Judge an engine that made nothing between two probes and cannot be asked: there is no key for it here.

    Raises:
        NotAliveError: a model's process or the engine has gone, or requests wait for an engine that is stuck.
    """
    status, answer = _fetch(port, timeout, "GET", "/health")
    if status != 200:
        raise NotAliveError(f"/health was answered {status}: {answer[:200].decode(errors='replace')}")
    _check_waiting(before, now)


def _check_waiting(before: dict[str, float], now: dict[str, float]) -> None:
    """Requests at two probes between which the engine has made nothing are waiting for one that is stuck."""
    if before.get(_IN_PROGRESS) and now[_IN_PROGRESS]:
        raise NotAliveError(f"the engine has made nothing for {now[_IN_PROGRESS]:.0f} requests since the last probe")


def _progress(port: int, timeout: float) -> dict[str, float]:
    """The counters and the requests in progress as they are now, each summed over its labels."""
    sums = dict.fromkeys((*COUNTERS, _IN_PROGRESS), 0.0)
    for line in _fetch(port, timeout, "GET", "/metrics")[1].decode(errors="replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    return sums


def _read(state: Path) -> dict[str, float]:
    """What the last probe found; nothing after a start."""
    try:
        found: dict[str, float] = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _fetch(port: int, timeout: float, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    headers = {"content-type": "application/json"} if body else {}
    key = os.environ.get("OPENAI_BLS_API_KEY")
    if key:
        headers["authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    if _HTTPS:
        # The certificate is of the server's public name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotAliveError(f"{method} {path} was not answered: {error or type(error).__name__}") from None
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Check once; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("timeout", type=float)
    parser.add_argument("state", type=Path, nargs="?", default=Path(_STATE_FILE))
    parser.add_argument("--of", choices=("both", "server", "engine"), default="both")
    parser.add_argument("--https", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if given.of == "server":
            check_server(given.port, given.timeout)
        elif given.of == "engine":
            check_engine(given.port, given.timeout, given.state)
        else:
            check(given.port, given.timeout, given.state)
    except NotAliveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
