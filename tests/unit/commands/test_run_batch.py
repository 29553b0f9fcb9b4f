"""`run-batch` against a small server: results, faults of the file, interruptions, and a server that is full."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openai_bls.commands import run_batch
from openai_bls.launcher.errors import LaunchError
from tests.unit.core_support import WAIT_S


class Server(ThreadingHTTPServer):
    """Answers by the prompt: "bad" is a 400, "full" a 503 at first; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None, str]] = []
        self.slow = threading.Event()
        """The prompt "slow" has come."""
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["prompt"]
        times = sum(asked == prompt for _, _, asked in server.asked)
        server.asked.append((self.path, self.headers.get("authorization"), prompt))
        status = 400 if prompt == "bad" else 503 if prompt == "full" and not times else 200
        body = b"oops" if status == 503 or prompt == "oops" else json.dumps({"echo": prompt}, indent=2).encode()
        if prompt == "slow":
            server.slow.set()
            server.stopped.wait(WAIT_S)
        self.send_response(status)
        self.send_header("x-request-id", "req_1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.stopped.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_batch, "RETRY_S", (0.001, 0.002))


def options(folder: Path, url: str, *prompts: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run_batch.add_arguments(parser)
    lines = [
        {"custom_id": f"{at}", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
        for at, prompt in enumerate(prompts)
    ]
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return parser.parse_args(["-i", f"{folder}/in.jsonl", "-o", f"{folder}/out.jsonl", "--url", url])


def results(folder: Path) -> dict[str, Any]:
    found = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line["response"] for line in found}


def test_results(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BLS_API_KEY", "secret")
    # The form of the URL that a person types.
    assert run_batch.run(options(tmp_path, server.url.removeprefix("http://"), "a", "full", "bad")) == 1
    found = results(tmp_path)
    assert {key: answer["status_code"] for key, answer in found.items()} == {"0": 200, "1": 200, "2": 400}
    assert found["0"] == {"status_code": 200, "request_id": "req_1", "body": {"echo": "a"}}
    assert {(path, key) for path, key, _ in server.asked} == {("/v1/completions", "Bearer secret")}
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("status", [200, 500])
def test_an_interrupted_run_goes_on(server: Server, tmp_path: Path, status: int) -> None:
    asked = options(tmp_path, server.url, "a", "b", "c")
    partial = tmp_path / "out.jsonl.partial"
    kept = {"id": "x", "custom_id": "1", "response": {"status_code": status, "request_id": "", "body": {}}}
    partial.write_text(json.dumps(kept) + '\n{"id": "y", "cus')
    assert run_batch.run(asked) == int(status != 200)
    assert set(results(tmp_path)) == {"0", "1", "2"}
    assert sorted(prompt for _, _, prompt in server.asked) == ["a", "c"]


def test_an_interrupted_command_waits_for_nobody(server: Server, tmp_path: Path) -> None:
    options(tmp_path, server.url, "a", "slow")
    command = [sys.executable, "-m", "openai_bls", "run-batch", "--concurrency", "1", "--url", server.url]
    with subprocess.Popen([*command, "-i", "in.jsonl", "-o", "out.jsonl"], cwd=tmp_path) as process:
        assert server.slow.wait(WAIT_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 2
    assert not server.stopped.is_set()
    assert len((tmp_path / "out.jsonl.partial").read_text().splitlines()) == 1


def fails(asked: argparse.Namespace, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        run_batch.run(asked)


def test_what_is_no_answer(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(options(tmp_path, server.url, "oops"), "no JSON")
    monkeypatch.setattr(run_batch, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(run_batch, "PATIENCE_S", 0.0)
    fails(options(tmp_path, server.url, "slow"), "cannot be reached: timed out")
    (tmp_path / "out.jsonl.partial").write_text("x\n")
    fails(options(tmp_path, server.url, "a"), "no result, move it away")


def test_a_server_that_is_full_for_good(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_batch, "PATIENCE_S", 0.0)
    assert run_batch.run(options(tmp_path, server.url, "full")) == 1
    (answer,) = results(tmp_path).values()
    assert (answer["status_code"], answer["body"]["error"]["message"]) == (503, "oops")


def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_batch, "PATIENCE_S", 0.0)
    asked = options(tmp_path, "http://127.0.0.1:1", "a")
    fails(asked, "cannot be reached")
    source = tmp_path / "in.jsonl"
    line = source.read_text()
    for text, said in ((f"{line}\n{line}", "line 2: another line has"), ("{", "line 1: "), ("", "no requests")):
        source.write_text(text)
        fails(asked, said)
    source.unlink()
    fails(asked, "No such file")
