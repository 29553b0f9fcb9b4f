"""Engines in processes of their own behind the real server: answers, deaths, and what is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.commands.main import main
from openai_bls.core.processes.machine import SERVER_MARK
from openai_bls.core.processes.process_tree import marked_processes
from openai_bls.launcher.testing import RunningServer, ServerFailedError, run_server
from openai_bls.launcher.tritonserver.ports import lease_ports
from tests.triton import triton_client
from tests.triton.conftest import ANSWERED, CHECKPOINT, SHORT_CHATS
from tests.triton.conversations import HELLO
from tests.triton.metrics import find, scrape
from tests.triton.operation.test_launcher import Launcher, regions
from tests.triton.operation.test_lifecycle import SLOW_NULL, stub, wait_for_health
from tests.waiting import Streams, until
from tests_transformers.engine.adapters import make_adapter

pytestmark = pytest.mark.triton

# In the environment of the server's own Python, which `python3` is there.
BEHIND = {"OPENAI_BLS_ENGINE_PYTHON": "python3"}
STREAMS = 32
TIMEOUT = 60.0
RESTARTING = "tensorrt_llm has lost its engine's process, which is being started again"
GIVEN_UP = "tensorrt_llm has lost its engine's process, which is not started any more; the server's log says why"


def workers(mark: str) -> list[int]:
    """Engines' processes of a server, by its mark."""
    return [pid for pid in marked_processes(mark) if is_worker(pid)]


def is_worker(pid: int) -> bool:
    """An engine's process itself, not its guardian."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(words) > 1 and words[1].endswith(b"bootstrap.py")


def folder(pid: int) -> Path:
    """Temporary folder of an engine's process, which its guardian removes with all else that a killed engine leaves."""
    variables = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
    (found,) = [Path(one.partition("=")[2]) for one in variables if one.startswith("TMPDIR=")]
    assert found.is_dir()
    return found


def worker(server: RunningServer) -> int:
    (found,) = workers(server.process.mark)
    return found


def post(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.openai_url}/{path}", json=body, timeout=TIMEOUT)


def chat(server: RunningServer, messages: Any = HELLO, max_tokens: int = 8, **more: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **more}
    return post(server, "chat/completions", body)


def text(server: RunningServer, messages: Any = HELLO, max_tokens: int = 8, **more: Any) -> str:
    found: str = chat(server, messages, max_tokens, **more).json()["choices"][0]["message"]["content"]
    return found


def reload(server: RunningServer) -> int:
    return main(
        ["reload", "--grpc-port", str(server.ports.grpc), "--http-port", str(server.ports.http), "tensorrt_llm"]
    )


def test_null_engine(repository: Path) -> None:
    """Every door, a process that dies under streams, a reload, and a stub that is killed."""
    args = ["--model-control-mode=explicit", "--load-model=*"]
    with run_server(repository, env=SLOW_NULL | BEHIND, args=args) as server:
        first = worker(server)
        assert chat(server).json()["usage"]["completion_tokens"] == 8
        streamed = {"text_input": "Hi", "max_tokens": 5, "stream": True}
        assert len(list(triton_client.generate_stream(server.http_url, "ensemble", streamed))) == 5
        body = {"messages": json.dumps(HELLO), "max_tokens": 5}
        found = triton_client.content(triton_client.chat_stream(server.http_url, body))
        assert found
        messages = triton_client.infer_input("messages", [json.dumps(HELLO)], "BYTES")
        chunks = triton_client.grpc_chat(server.grpc_url, [messages], {"max_tokens": 5, "stream": True})
        assert triton_client.content(chunks) == found
        wait_for_health(server, "ok")

        streams = Streams(server, STREAMS)
        os.kill(first, signal.SIGKILL)
        streams.fail()
        wait_for_health(server, "ok")
        second = worker(server)
        assert second != first
        assert chat(server).json()["usage"]["completion_tokens"] == 8
        until(lambda: find(scrape(server), "engine_restarts_total") == 1)

        assert reload(server) == 0
        assert chat(server).status_code == 200
        third = worker(server)
        assert third != second

        left = folder(third)
        os.kill(stub(server, "tensorrt_llm"), signal.SIGKILL)
        until(lambda: not workers(server.process.mark))
        until(lambda: not left.exists())
        wait_for_health(server, "tensorrt_llm has died")
        assert reload(server) == 0
        assert chat(server).status_code == 200

        left = folder(worker(server))
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.process.leftovers())
        assert not left.exists()
        assert regions(server.process.mark) == []


def test_launchers_that_are_killed_leave_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SLOW_NULL | BEHIND).items():
        monkeypatch.setenv(name, value)
    with lease_ports() as leased:
        launcher = Launcher(repository, leased)
        try:
            launcher.read_until(r"\] ready")
            (left,) = [folder(pid) for pid in launcher.family() if is_worker(pid)]
            mark = launcher.mark()
        finally:
            launcher.process.kill()
            launcher.process.wait()
            assert launcher.process.stdout is not None
            launcher.process.stdout.close()
        until(lambda: not launcher.family())
        assert not left.exists()
        assert regions(mark) == []


def test_a_refusal_at_the_load(repository: Path) -> None:
    """Each reason has a unit test."""
    args = ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
    env = {"OPENAI_BLS_ENGINE_PYTHON": "/bin/false"}
    with (
        pytest.raises(ServerFailedError, match="exit status 1"),
        run_server(repository, env=env, args=args, wait_openai=False),
    ):
        pass


@pytest.fixture(scope="module")
def lora_repository(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("lora") / "model_repository"
    shutil.copytree(repository, copy)
    lora = LoraOptions({}, max_loras=2, max_lora_rank=8)
    build(BuildOptions(str(CHECKPOINT), copy, "transformers", lora=lora, self_test=False), print)
    return copy


def test_embedded_engine(lora_repository: Path, tmp_path: Path) -> None:
    """Golden answers; an adapter that is loaded over /v1, lost with the process and loaded again; the end of it all."""
    make_adapter(CHECKPOINT, tmp_path / "poet", r=4, std=0.12, lora_alpha=16, target_modules=["q_proj", "down_proj"])
    env = BEHIND | {"OPENAI_BLS_LORA_ROOT": str(tmp_path), "OPENAI_BLS_ENGINE_RESTARTS": "2"}
    with run_server(lora_repository, env=env) as server:
        for golden in SHORT_CHATS[:4]:
            assert text(server, golden.messages, golden.tokens) == golden.answer
        assert post(server, "load_lora_adapter", {"lora_name": "poet", "lora_path": "poet"}).status_code == 200
        before = text(server, model="poet")
        os.kill(worker(server), signal.SIGKILL)
        wait_for_health(server, RESTARTING)
        wait_for_health(server, "ok")
        assert text(server, model="poet") == before
        assert (
            chat(server, ANSWERED.messages, ANSWERED.tokens).json()["choices"][0]["message"]["content"]
            == ANSWERED.answer
        )
        unloading = {"lora_name": "poet"}
        assert (
            httpx.post(f"{server.openai_url}/unload_lora_adapter", json=unloading, timeout=TIMEOUT).status_code == 200
        )
        assert chat(server, model="poet").status_code == 404

        # What does not load again is given up in the end, and the server goes on.
        manifest = lora_repository / "tensorrt_llm" / "1" / "engine.json"
        manifest.rename(manifest.with_suffix(".aside"))
        os.kill(worker(server), signal.SIGKILL)
        wait_for_health(server, RESTARTING)
        refused = chat(server)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "The engine is not available.")
        wait_for_health(server, GIVEN_UP)
        log = server.log_path.read_text(encoding="utf-8")
        assert "no engine in model_repository/tensorrt_llm/1" in log
        assert "it is not started any more: load the model again" in log


@contextmanager
def engine_by_hand(mark: str, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`openai-bls engine`, as somebody runs it beside Triton."""
    environment = os.environ | {SERVER_MARK: mark}
    command = [sys.executable, "-m", "openai_bls", "engine", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_an_engine_that_somebody_else_runs(repository: Path, tmp_path: Path) -> None:
    place = tmp_path / "engine.sock"
    mark = str(tmp_path)
    words = ["--model-dir", str(repository / "tensorrt_llm" / "1"), "--socket", str(place)]
    words += ["--option", "engine=null", "--option", "null_step_delay_ms=20"]
    with (
        engine_by_hand(mark, words) as first,
        run_server(repository, env={"OPENAI_BLS_ENGINE_ADDRESS": f"unix:{place}"}) as server,
    ):
        assert chat(server).json()["usage"]["completion_tokens"] == 8
        assert workers(server.process.mark) == []
        streams = Streams(server, 4)
        os.kill(workers(mark)[0], signal.SIGKILL)
        streams.fail()
        assert first.wait(TIMEOUT) == 128 + signal.SIGKILL
        assert marked_processes(mark) == []
        wait_for_health(server, RESTARTING)
        with engine_by_hand(mark, words) as second:
            wait_for_health(server, "ok")
            assert chat(server).json()["usage"]["completion_tokens"] == 8
            # It is somebody else's: a reload of the model leaves it alone, an order to end does not.
            second.terminate()
            assert second.wait(TIMEOUT) == 0
            assert not place.exists()
            wait_for_health(server, RESTARTING)
