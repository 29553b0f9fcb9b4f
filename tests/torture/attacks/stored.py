"""Attacks by what is stored: conversations of many items and references to them, stores that are filled, batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from openai_bls.api.responses.conversations.store import MAX_CONVERSATIONS, MAX_ITEMS
from openai_bls.api.responses.store import MAX_BYTES
from tests.torture.attacks.alice import Alice, Reply

_ITEMS_AT_ONCE = 20
_LISTERS = 20
_ADDERS = 4
_MOST_BODY = 30 << 20
_FILE_BYTES = 1 << 20


def _item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def _made(reply: Reply | None) -> str | None:
    """Id of what was made."""
    return str(reply.json()["id"]) if reply is not None and reply.status == 200 else None


def _until_over(alice: Alice, work: Callable[[], object], times: int | None = None) -> None:
    for _ in itertools.count() if times is None else range(times):
        if alice.over():
            return
        work()


def conversation_items(alice: Alice) -> None:
    """A conversation of as many items as the time allows, listed and referred to all the while."""
    conversation = _made(alice.post("/v1/conversations", {"items": [_item("first")]}))
    if conversation is None:
        return
    path, size = f"/v1/conversations/{conversation}/items", alice.rng.choice([1, 1, 100, 5000])
    ids: list[str] = []
    alice.note(f"up to {MAX_ITEMS} items of {size} characters in a conversation")

    def add() -> None:
        reply = alice.post(path, {"items": [_item("x" * size)] * _ITEMS_AT_ONCE})
        if reply is not None and reply.status == 200:
            ids.extend(one["id"] for one in reply.json()["data"])

    def show() -> None:
        alice.ask("GET", f"{path}?limit={alice.rng.choice([1, 1, 20, 100])}&order={alice.rng.choice(['asc', 'desc'])}")

    def refer() -> None:
        count = alice.near(min(1000, len(ids) or 1))
        chosen = (alice.rng.choices(ids, k=count)) if ids else []
        references = [{"type": "item_reference", "id": one} for one in chosen]
        alice.note(f"{len(references)} references to one of {len(ids)} items")
        body = {"input": [*references, _item("Hello")], "max_output_tokens": 16, "store": False}
        alice.post(alice.rng.choice(["/v1/responses", "/v1/responses/input_tokens"]), body)

    works = [*[add] * _ADDERS, *[show] * _LISTERS, *[refer] * 2]
    alice.at_once(partial(_until_over, alice, work) for work in works)


def large_conversation(alice: Alice) -> None:
    """A conversation that outgrows the room of the store."""
    conversation = _made(alice.post("/v1/conversations", {}))
    size = alice.near(MAX_BYTES // 64, _MOST_BODY // 2)
    alice.note(f"items of {size} bytes in one conversation")

    def add() -> None:
        alice.post(f"/v1/conversations/{conversation}/items", {"items": [_item("x" * size)]})

    _until_over(alice, add, 2 * MAX_BYTES // size + 2)


def many_conversations(alice: Alice) -> None:
    """Far more conversations than there is room for."""
    metadata = {f"k{at}": "x" * 500 for at in range(alice.rng.choice([0, 0, 16]))}
    alice.note(f"up to {2 * MAX_CONVERSATIONS} conversations with {len(metadata)} metadata")
    make = partial(alice.post, "/v1/conversations", {"metadata": metadata})
    alice.at_once([partial(_until_over, alice, make, MAX_CONVERSATIONS // 2)] * 4)


def stored_responses(alice: Alice) -> None:
    """Responses that are stored, few large ones and many small ones."""

    def make() -> None:
        # A schema's comment is stored and no part of the prompt.
        size = alice.rng.choice([0, 0, 1000, 10**6, alice.near(MAX_BYTES // 3, _MOST_BODY)])
        alice.note(f"a stored response of {size} bytes")
        schema = {"type": "object", "properties": {}, "additionalProperties": False, "$comment": "x" * size}
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        further = {"text": text} if size else {}
        alice.post("/v1/responses", {"input": "Hi", "max_output_tokens": 16, "store": True, **further})

    alice.at_once([partial(_until_over, alice, make)] * 4)


def _upload(alice: Alice, data: bytes, purpose: str = "user_data") -> str | None:
    fields = f'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    head = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    body = f"{fields}{head}".encode() + data + b"\r\n--x--\r\n"
    return _made(alice.ask("POST", "/v1/files", body, {"content-type": "multipart/form-data; boundary=x"}))


def files(alice: Alice) -> None:
    """Files until their room is full, and lists of them."""

    def work() -> None:
        size = alice.near(_FILE_BYTES - 1000, 4 << 20)
        alice.note(f"a file of {size} bytes")
        _upload(alice, b"x" * size)
        alice.ask("GET", f"/v1/files?limit={alice.rng.choice([1, 10_000])}")

    alice.at_once([partial(_until_over, alice, work)] * 8)


def batches(alice: Alice) -> None:
    """Batches of many requests, and of requests of many sequences."""

    def work() -> None:
        count, n = alice.rng.choice([1, 100, 5000]), alice.rng.choice([1, 8, 128])
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 100, "n": n, "temperature": 1}
        lines = (
            json.dumps({"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions", "body": body})
            for at in range(count)
        )
        alice.note(f"a batch of {count} requests with n = {n}")
        file = _upload(alice, "\n".join(lines).encode(), "batch")
        options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = _made(alice.post("/v1/batches", {"input_file_id": file, **options})) if file else None
        if batch is not None:
            made.append(batch)

    made: list[str] = []
    _until_over(alice, work, alice.rng.choice([1, 3, 20]))
    while not alice.over():
        alice.ask("GET", "/v1/batches")


def batch_files(alice: Alice) -> None:
    """Batches that fail at once, by files whose faults are long, or very many, or very far apart; lists of them."""

    def work() -> None:
        size = alice.rng.choice([1, 100, 10**5, 10**6])
        line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "%b"}}'
        data = alice.rng.choice([
            b'{"%b": 1}\n' % (b"x" * size) * (_MOST_BODY // (size + 8) if size > 100 else 200),
            b"\n" * _MOST_BODY,
            line % (b"x" * size),
            b"",
        ])  # fmt: skip
        alice.note(f"a file of {len(data)} bytes, which begins with {data[:20]!r}")
        file = _upload(alice, data, "batch")
        for _ in range(alice.rng.choice([1, 20])):
            options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            alice.post("/v1/batches", {"input_file_id": file, **options})
        alice.ask("GET", "/v1/batches?limit=100")

    alice.at_once([partial(_until_over, alice, work)] * 4)


def no_batches(alice: Alice) -> None:
    """The end of what `batches` has left behind, which is no attack."""
    reply = alice.ask("GET", "/v1/batches?limit=100")
    for batch in reply.json()["data"] if reply is not None else []:
        if batch["status"] in ("validating", "in_progress"):
            alice.post(f"/v1/batches/{batch['id']}/cancel", {})
