"""Client of the key alice: asks, from several threads, until its time is over, and then leaves."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.keys import ALICE, authorization
from tests.torture.doors import HOST

_MOST_SENT = 40
"""Sentences about what was sent last, for a finding."""
_DRAIN_SECONDS = 1.0
"""Time for the answer to a request that was not sent to its end."""


@dataclass(frozen=True)
class Target:
    """Server that is attacked."""

    ports: Ports
    sockets: Path
    """Folder below which its Unix sockets are."""
    host_port: int
    """Port of a host of images that alice may serve by herself."""


@dataclass(frozen=True)
class Reply:
    """An answer, whole."""

    status: int
    text: bytes

    def json(self) -> Any:
        """The object."""
        return json.loads(self.text)


@dataclass
class Outcome:
    """What has become of an attack."""

    told: Counter[str] = field(default_factory=Counter)
    """Status → answers; `left` are those that were not waited for."""
    wrong: Counter[str] = field(default_factory=Counter)
    """What no client may be told."""
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_SENT))


class Alice:
    """The attacker.

    Args:
        target: of the attack.
        seconds: until she leaves.
        seed: of what is drawn.
    """

    def __init__(self, target: Target, seconds: float, seed: str) -> None:
        self.target = target
        self.outcome = Outcome()
        self.rng = random.Random(seed)
        self._seconds = seconds
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Have all the time from now on, after what had to be prepared."""
        self._end = time.monotonic() + self._seconds

    def left_s(self) -> float:
        """Seconds until the end."""
        return max(0.0, self._end - time.monotonic())

    def over(self) -> bool:
        """Whether it is time to leave."""
        return not self.left_s()

    def near(self, bound: int, most: int | None = None) -> int:
        """A number up to and beyond a bound, at most `most`, more often at it than far from it."""
        numbers = (1, bound // 3, bound // 2, bound - 1, bound, bound, bound + 1, 2 * bound, 10 * bound)
        return max(1, min(self.rng.choice(numbers), most or 10 * bound))

    def note(self, sentence: str) -> None:
        """Keep a sentence about what is sent now."""
        self.outcome.sent.append(sentence)

    def count(self, status: str, wrong: str | None = None) -> None:
        """Count an answer."""
        with self._lock:
            self.outcome.told[status] += 1
            if wrong is not None:
                self.outcome.wrong[wrong] += 1

    def at_once(self, works: Iterable[Callable[[], object]]) -> None:
        """Do several things, each in a thread, and wait for all."""
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- whole requests ---

    def post(self, path: str, body: object, patience_s: float | None = None) -> Reply | None:
        """POST of JSON; None if there is no answer in time."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, text, {"content-type": "application/json"}, patience_s)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float | None = None,
    ) -> Reply | None:
        """A request on a connection by itself; None if there is no answer in time."""
        timeout = min(self.left_s(), patience_s or self.left_s())
        if timeout <= 0:
            return None
        connection = http.client.HTTPConnection(HOST, self.target.ports.openai, timeout=timeout)
        everything = {"authorization": authorization(ALICE), "connection": "close", **(headers or {})}
        try:
            connection.request(method, path, body, everything)
            response = connection.getresponse()
            text = response.read()
        except TimeoutError:
            self.count("left")
            return None
        except (http.client.HTTPException, OSError):
            self.count("broken off")
            return None
        finally:
            connection.close()
        self.count(str(response.status), no_answer_for(response.status, dict(response.getheaders()), text))
        return Reply(response.status, text)

    # --- pieces ---

    def raw(self, head: Sequence[str], pieces: Iterable[bytes], key: bool = True) -> None:
        """Send the lines of a head and pieces of what comes after it, also beyond an answer, to the end of the time."""
        lines = [*head, "Host: x", *([f"Authorization: {authorization(ALICE)}"] if key else [])]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode(), pieces)

    def send(self, first: bytes, pieces: Iterable[bytes]) -> None:
        """Send bytes on a connection by itself, and count how it is answered."""
        received = b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.target.ports.openai)) as connection:
            connection.settimeout(max(0.1, self.left_s()))
            with contextlib.suppress(OSError):
                connection.sendall(first)
                for piece in pieces:
                    connection.sendall(piece)
                    if self.over():
                        break
            connection.settimeout(_DRAIN_SECONDS)
            received = connection.recv(1000)
        status = received[9:12].decode(errors="replace") if received.startswith(b"HTTP/1.1 ") else "hung up"
        self.count(status, "500" if status == "500" else None)


def no_answer_for(status: int, headers: Mapping[str, str], text: bytes) -> str | None:
    """What is wrong with an answer, whatever was asked; None if nothing is."""
    if b"Traceback (most recent" in text:
        return "a traceback"
    if status in (429, 503) and "retry-after" not in (name.lower() for name in headers):
        return f"{status} without Retry-After"
    return str(status) if status >= 500 and status not in (503, 504) else None
