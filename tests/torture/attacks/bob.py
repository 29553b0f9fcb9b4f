"""Client of the quiet key bob: few requests at a time, whose answers and whose costs are looked at."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai_bls.launcher.tritonserver.ports import Ports
from tests.pictures import data_uri, picture
from tests.sounds import silence
from tests.torture.attacks.keys import BOB, authorization
from tests.torture.doors import HOST
from tests.torture.processes.cpu import Meter, attend
from tests.torture.schemas import HOST_PORT, SEES
from tests.torture.sounds import HEARS
from tests.triton.conftest import ANSWERED

PATIENCE_SECONDS = 60.0
"""Without a byte. On the busiest machine nothing waits so long for CPU time: it waits for somebody's timeout."""
_PAUSE_SECONDS = 0.2
_TOKENS = 4
_CHAT: dict[str, Any] = {"messages": ANSWERED.messages, "temperature": 0, "max_tokens": _TOKENS, "stream": True}
_IN_TURN = (
    *(("health",), ("first token", "JSON"), ("image", "image of a host"), ("audio",), ("stored things",)),
    ("long text",),
)
"""Kinds of requests, in threads. Of each engine only one place is kept free for a key that has nothing running."""
_ITEMS = [{"type": "message", "role": "user", "content": f"item {at}"} for at in range(3)]
_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="bob"\r\n\r\nof bob\r\n--x--\r\n'
)
_AUDIO_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + HEARS.encode() + b"\r\n"
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n--x--\r\n'
)
_LONG_TEXT = {"prompt": "Count to a hundred. " * 5000}
"""Whose body and whose text are not taken for short ones."""
HEARD = "0:0.000"
"""Text of a second of silence."""


@dataclass(frozen=True)
class Look:
    """An answer to bob."""

    name: str
    wall_s: float
    loop_s: float
    """CPU time of the event loop's thread while bob waited."""
    cpu_s: float
    """CPU time of all the server's processes."""
    wrong: str = ""
    """What is wrong with the answer."""
    ended_s: float = 0.0
    """When the answer was there, by the monotonic clock."""


class WrongAnswerError(Exception):
    """Something else than what bob should get."""


class Bob:
    """The client; `looking` has one thread for each engine that is asked.

    Args:
        ports: of the server.
        meter: of its CPU time.
    """

    def __init__(self, ports: Ports, meter: Meter) -> None:
        self._ports = ports
        self._meter = meter
        self._numbers = itertools.count()
        self._tokens = 0
        """Of the long text, once they have been told."""
        self._stored: dict[str, bytes] = {}
        """Path → what was there when it was stored."""
        self.kinds: dict[str, Callable[[], None]] = {
            "health": self._health,
            "first token": self._first_token,
            "JSON": self._json,
            "image": self._image,
            "audio": self._audio,
            "image of a host": partial(self._see, f"http://{HOST}:{HOST_PORT}/good"),
            "stored things": self.check_stored,
            "long text": self._long_text,
        }

    @contextlib.contextmanager
    def looking(self) -> Iterator[list[Look]]:
        """Ask all kinds of things for the time of the block, and to the end of what was asked then."""
        looks: list[Look] = []
        ended = threading.Event()

        def repeat(names: tuple[str, ...]) -> None:
            attend()
            while True:
                looks.extend(map(self.look, names))
                if ended.wait(_PAUSE_SECONDS):
                    return

        threads = [threading.Thread(target=repeat, args=(names,)) for names in _IN_TURN]
        for thread in threads:
            thread.start()
        try:
            yield looks
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def look(self, name: str) -> Look:
        """Ask once."""
        begun, cpu, loop = time.monotonic(), self._meter.family_s(), self._meter.loop_s()
        wrong = ""
        try:
            self.kinds[name]()
        except WrongAnswerError as error:
            wrong = str(error)
        except TimeoutError:
            wrong = "no answer"
        except (http.client.HTTPException, OSError, ValueError, LookupError) as error:
            wrong = f"broken: {type(error).__name__}"
        # The loop's first: the other takes longer to read.
        loop = self._meter.loop_s() - loop
        ended = time.monotonic()
        return Look(name, ended - begun, loop, self._meter.family_s() - cpu, wrong, ended)

    def store(self) -> None:
        """Store a conversation, a response and a file."""
        conversation = self._post("/v1/conversations", {"items": _ITEMS})["id"]
        response = self._post("/v1/responses", {"input": "Hello", "max_output_tokens": 16, "store": True})["id"]
        file = json.loads(self._ask("POST", "/v1/files", _FORM, "multipart/form-data; boundary=x"))["id"]
        paths = (
            *(f"/v1/conversations/{conversation}", f"/v1/conversations/{conversation}/items"),
            *(f"/v1/responses/{response}", f"/v1/files/{file}/content"),
        )
        self._stored = {path: self._ask("GET", path) for path in paths}

    def check_stored(self) -> None:
        """See that everything is as it was stored.

        Raises:
            WrongAnswerError: something is gone, or has changed.
        """
        for path, stored in self._stored.items():
            if self._ask("GET", path) != stored:
                raise WrongAnswerError(f"{path.split('/')[2]} changed")

    def some_of_the_loop(self) -> None:
        """Requests that the event loop answers by itself."""
        for _ in range(100):
            self._ask("GET", "/version")

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        connection = http.client.HTTPConnection(HOST, self._ports.openai, timeout=PATIENCE_SECONDS)
        headers = {"authorization": authorization(BOB), "content-type": kind, "connection": "close"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise WrongAnswerError(f"{response.status} {_code(text)}".strip())
        return text

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._ask("POST", path, json.dumps(body).encode()))
        return answer

    def _health(self) -> None:
        self._ask("GET", "/health")

    def _first_token(self) -> None:
        received = self._ask("POST", "/v1/chat/completions", json.dumps(_CHAT).encode())
        events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: {")]
        deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        if not text or not ANSWERED.answer.startswith(text):
            raise WrongAnswerError("another text")

    def _json(self) -> None:
        name = f"bob{next(self._numbers)}"
        schema = {
            "type": "object",
            "properties": {name: {"enum": ["yes", "no"]}},
            "required": [name],
            "additionalProperties": False,
        }
        format_ = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
        asked = {"messages": ANSWERED.messages, "temperature": 0, "max_tokens": 60, "response_format": format_}
        (choice,) = self._post("/v1/chat/completions", asked)["choices"]
        if json.loads(choice["message"]["content"]).keys() != {name}:
            raise WrongAnswerError("another JSON")

    def _image(self) -> None:
        number = next(self._numbers)
        # No cache has it.
        self._see(data_uri(picture(32, 32, (number % 256, number // 256 % 256, 7))))

    def _audio(self) -> None:
        body = _AUDIO_FORM % silence(1.0)
        received = self._ask("POST", "/v1/audio/transcriptions", body, "multipart/form-data; boundary=x")
        if json.loads(received)["text"] != HEARD:
            raise WrongAnswerError("another text")

    def _long_text(self) -> None:
        count = self._post("/tokenize", _LONG_TEXT)["count"]
        self._tokens = self._tokens or count
        if count != self._tokens:
            raise WrongAnswerError("other tokens")

    def _see(self, url: str) -> None:
        content = [{"type": "image_url", "image_url": {"url": url}}]
        asked = {"model": SEES, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        self._post("/v1/chat/completions", asked)


def _code(text: bytes) -> str:
    """Code of an error, without what differs each time."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(text)["error"]["code"])
    return ""
