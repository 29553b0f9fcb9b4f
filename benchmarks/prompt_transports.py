"""Cost of BLS for a prompt, side by side with the socket: `python -m benchmarks.prompt_transports`.

Three servers at a time differ in how `openai_bls` reaches the same `preprocessing`: over the socket of the exchange, by
BLS with the whole request in one tensor, and by BLS with the official tensors, where `openai_bls` renders the chat
template itself. Two more have the socket and guards that have nothing to say, a BLS call each. The requests are chats
on /tokenize, which answers without an engine; one after another, each to all servers in turn, and then several at a
time. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.contenders.servers import prepare
from benchmarks.driver import exit_on_sigterm
from benchmarks.machine import conditions
from benchmarks.options import positive
from benchmarks.report import markdown_table
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import run_server
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import PREPROCESSING

_ROOT = Path(__file__).resolve().parent.parent
_GUARDS = _ROOT / "benchmarks" / "bls_models"
_TRANSPORTS = {
    "socket": "exchange",
    "BLS, one tensor": "bls",
    "BLS, official tensors": "bls",
    "socket, guard before": "exchange",
    "socket, guard before and after": "exchange",
}
_OURS_ALONE = ("PROMPT_REQUEST", "PROMPT_RESULT")
_WARM_UP = 50
"""Requests to each server before the first that counts."""


class Connection:
    """A connection to /v1 of a server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def tokens(self, content: str) -> int:
        """Number of tokens of a chat."""
        body = msgspec.json.encode({"messages": [{"role": "user", "content": content}]})
        self._connection.request("POST", "/v1/tokenize", body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        answer = msgspec.json.decode(response.read())
        if response.status != 200:
            raise LaunchError(f"/v1/tokenize answers {response.status}: {answer}")
        count: int = answer["count"]
        return count

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@contextlib.contextmanager
def servers(scratch: Path) -> Iterator[dict[str, str]]:
    """A server per transport: its base URL."""
    repository = prepare(_ROOT / "model_repository", scratch).repository
    official = scratch / "official"
    shutil.copytree(repository, official)
    declared = msgspec.structs.replace(
        PREPROCESSING,
        inputs=tuple(tensor for tensor in PREPROCESSING.inputs if tensor.name not in _OURS_ALONE),
        outputs=tuple(tensor for tensor in PREPROCESSING.outputs if tensor.name not in _OURS_ALONE),
    )
    (official / "preprocessing" / "config.pbtxt").write_text(render(declared), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, transport in _TRANSPORTS.items():
            folder = official if "official" in name else repository
            guards = {f"OPENAI_BLS_GUARD_{hook.upper()}": "guard" for hook in ("before", "after") if hook in name}
            environment = {"OPENAI_BLS_PREPROCESSING_TRANSPORT": transport, **guards}
            server = run_server(folder, environment, [f"--model-repository={_GUARDS}"] if guards else [])
            urls[name] = stack.enter_context(server).openai_url
        yield urls


def one_by_one(urls: dict[str, str], prompts: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds of each request, by transport; every prompt goes to all of them, in changing order."""
    connections = {name: Connection(url) for name, url in urls.items()}
    times: dict[str, list[float]] = {name: [] for name in urls}
    order = list(connections)
    for at, prompt in enumerate(prompts):
        random.shuffle(order)
        counts = set()
        for name in order:
            began = time.perf_counter()
            counts.add(connections[name].tokens(prompt))
            if at >= _WARM_UP:
                times[name].append((time.perf_counter() - began) * 1e6)
        if len(counts) != 1:
            raise LaunchError(f"the transports do not agree: {sorted(counts)} tokens")
    for connection in connections.values():
        connection.close()
    return times


def table(times: dict[str, list[float]]) -> str:
    """One row per transport, the socket first."""
    base = statistics.median(times["socket"])
    body = []
    for name, values in times.items():
        median = statistics.median(values)
        # Of the same prompt, so that what else the machine does in between counts less.
        more = statistics.median(value - other for value, other in zip(values, times["socket"], strict=True))
        # On a busy machine the fastest tenth says most.
        tenth = statistics.quantiles(values, n=10, method="inclusive")[0]
        cells = (f"{tenth:,.0f}", f"{median:,.0f}", f"{more:+,.0f}", f"{median / base:.2f}")
        body.append((name, *cells))
    headers = ("preprocessing by", "µs p10", "µs p50", "µs more than the socket", "times the socket")
    return markdown_table(headers, body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_transports", description=__doc__)
    parser.add_argument("--requests", type=positive, default=1000, help="to each server (default %(default)s)")
    parser.add_argument("--words", type=positive, default=48, help="of a prompt (default %(default)s)")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    numbers = random.Random(1)
    words = ["machine", "learning", "what", "is", "the", "数据", "naïve", "computer"]
    prompts = [" ".join(numbers.choices(words, k=options.words)) for _ in range(_WARM_UP + options.requests)]
    try:
        with tempfile.TemporaryDirectory(prefix="openai_bls-") as scratch, servers(Path(scratch)) as urls:
            before = conditions("")
            times = one_by_one(urls, prompts)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{before.date}, {before.cores} cores, load {before.load_before} before\n")
    print(table(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
