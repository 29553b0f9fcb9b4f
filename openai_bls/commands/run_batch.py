"""Command `run-batch`: a file of requests, answered by a running server, as `vllm run-batch` does it."""

from __future__ import annotations

import argparse
import http.client
import itertools
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from openai_bls.api.batches import lines
from openai_bls.api.batches.lines import Line, LineError
from openai_bls.api.common.encoding import encode
from openai_bls.commands.connection import DEFAULT_URL, Connection, add_certificates, add_key, add_url, connection
from openai_bls.core.errors import OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError

TIMEOUT_S = 3600.0
"""Seconds that one request may take."""
PATIENCE_S = 120.0
"""Seconds for which a request is sent again while the server is full, or not there."""
RETRY_S = (0.5, 10.0)
"""Seconds between two of these, at first and at most."""
_PROGRESS_S = 5.0
"""Seconds between two lines about the progress."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.description = (
        "Send the requests of a file in the Batch API's form to a running server and write their results. What was"
        " answered before an interruption is not asked again."
    )
    parser.add_argument("-i", "--input-file", type=Path, required=True, metavar="FILE", help="requests, one a line")
    parser.add_argument("-o", "--output-file", type=Path, required=True, metavar="FILE", help="for their results")
    add_url(parser, default=DEFAULT_URL)
    add_key(parser)
    add_certificates(parser)
    parser.set_defaults(timeout=TIMEOUT_S)
    parser.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="requests at a time (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Answer the file; 1 if some requests have failed.

    Raises:
        LaunchError: the file or an option is wrong, or the server cannot be reached.
    """
    if options.concurrency < 1:
        raise LaunchError("--concurrency must be at least 1")
    server = connection(options)
    total = _check(options.input_file)
    target: Path = options.output_file
    unfinished = target.with_name(f"{target.name}.partial")
    console = Console()
    try:
        done = lines.resume(unfinished, lines.Tally())
        if done:
            console.line(f"{len(done)} of {total} requests are in {unfinished} already: going on from there")
        _send_all(options, server, done, unfinished, total, console)
        failed = lines.failures(unfinished)
    except OSError as error:
        raise LaunchError(f"{error.filename or unfinished}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise LaunchError(f"{unfinished} has a line that is no result, move it away: {error}") from None
    except KeyboardInterrupt:
        raise LaunchError(f"interrupted: what there is lies in {unfinished}; run the same command to go on") from None
    unfinished.replace(target)
    console.line(f"{total} results in {target}" + (f", {failed} of them errors" if failed else ""))
    return 1 if failed else 0


def _check(path: Path) -> int:
    """The number of requests in a file, all of which are right."""
    seen: set[str] = set()
    try:
        for number, text in lines.texts(path, OpenAiBlsSettings().max_request_bytes):
            try:
                line = lines.parse(text)
            except LineError as error:
                raise LaunchError(f"{path}, line {number}: {error.message}") from None
            if line.custom_id in seen:
                raise LaunchError(f"{path}, line {number}: another line has the 'custom_id' {line.custom_id!r}")
            seen.add(line.custom_id)
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from None
    if not seen:
        raise LaunchError(f"{path} has no requests")
    return len(seen)


def _send_all(
    options: argparse.Namespace, server: Connection, done: set[str], unfinished: Path, total: int, console: Console
) -> None:
    """Send what has no result yet."""
    answered, told_at = len(done), time.monotonic()
    left: Iterator[Line] = (
        line
        for _, text in lines.texts(options.input_file, OpenAiBlsSettings().max_request_bytes)
        if (line := lines.parse(text)).custom_id not in done
    )
    results: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def answer(line: Line) -> None:
        try:
            results.put(_send(server, line))
        except BaseException as error:  # raised where the results are read
            results.put(error)

    running = 0
    with unfinished.open("ab", buffering=0) as file:
        while True:
            for line in itertools.islice(left, options.concurrency - running):
                # A thread of a pool would keep an interrupted command until its request is answered.
                threading.Thread(target=answer, args=(line,), daemon=True).start()
                running += 1
            if not running:
                return
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            file.write(result)
            running -= 1
            answered += 1
            if time.monotonic() - told_at > _PROGRESS_S:
                console.line(f"{answered} of {total}")
                told_at = time.monotonic()


def _send(server: Connection, line: Line) -> bytes:
    """The result of a request, as a line.

    Raises:
        LaunchError: the server cannot be reached, or is none of this API.
    """
    url, tls = server.url, server.tls if isinstance(server.tls, ssl.SSLContext) else None
    headers = {"Content-Type": "application/json", **server.headers}
    asked = urllib.request.Request(url.removesuffix("/v1") + line.url, encode(line.body), headers)
    deadline, (pause, most) = time.monotonic() + PATIENCE_S, RETRY_S
    while True:
        late = time.monotonic() >= deadline
        try:
            with urllib.request.urlopen(asked, timeout=server.timeout, context=tls) as answer:
                body = answer.read()
                return lines.result(line, answer.status, answer.headers.get("x-request-id", ""), body)
        except msgspec.DecodeError:
            raise LaunchError(f"the server at {url} answers what is no JSON: {body[:100]!r}") from None
        except urllib.error.HTTPError as error:
            # A 429 without the header is of a request that is too large at any time.
            again = error.code == 503 or (error.code == 429 and error.headers.get("Retry-After") is not None)
            if late or not again:
                return _refused(line, error)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            # A certificate that is refused stays so.
            if late or isinstance(reason, ssl.SSLCertVerificationError):
                raise LaunchError(f"the server at {url} cannot be reached: {reason}") from None
        time.sleep(pause)
        pause = min(2 * pause, most)


def _refused(line: Line, error: urllib.error.HTTPError) -> bytes:
    """The result of a request that was answered with an error, whose body may be a proxy's."""
    body, request_id = error.read(), error.headers.get("x-request-id", "")
    try:
        return lines.result(line, error.code, request_id, body)
    except msgspec.DecodeError:
        said = OverloadedError(body[:200].decode(errors="replace")).body()
        return lines.result(line, error.code, request_id, encode(said))
