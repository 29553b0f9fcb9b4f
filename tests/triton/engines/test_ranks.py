"""Several ranks for real: Open MPI's mpirun over real tritonservers, on one machine and on what passes for two."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.launcher.tritonserver.ports import lease_ports
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.triton.operation.test_launcher import MODEL, PATIENCE, Launcher, add_model, answer, post, regions
from tests.waiting import until

pytestmark = pytest.mark.triton

CPP_ENGINE = Manifest(
    "tensorrt_llm",
    "echo",
    max_model_len=9,
    max_batch_size=1,
    created=0,
    record=TensorRtLlmRecord(version="1.2.1", backend="cpp", tensor_parallel_size=2).fields(),
)


class Ranks(Launcher):
    """`python -m openai_bls serve` with what its processes say of themselves."""

    def of(self, pid: int, what: str) -> list[str]:
        try:
            return Path(f"/proc/{pid}/{what}").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return [""]

    def server(self, rank: int) -> int:
        """The process id of a rank's tritonserver."""
        (pid,) = [
            pid
            for pid in self.family()
            if f"OMPI_COMM_WORLD_RANK={rank}" in self.of(pid, "environ")
            and self.of(pid, "cmdline")[0].endswith("/tritonserver")
        ]
        return pid


def end(ranks: Ranks) -> None:
    """Leave nothing behind."""
    for pid in ranks.family():
        os.kill(pid, signal.SIGKILL)
    ranks.process.wait()
    if ranks.process.stdout is not None:
        ranks.process.stdout.close()


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    # The mpirun of this environment, whatever the machine has.
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    started: list[Ranks] = []
    with lease_ports() as leased:

        def launch(repository: Path, *extra: str) -> Ranks:
            started.append(Ranks(repository, leased, *extra))
            return started[-1]

        yield launch
        for ranks in started:
            end(ranks)


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """A repository whose `tensorrt_llm` is a small model, with the manifest of a C++ engine of two ranks."""
    add_model(tmp_path / "models", "echo", MODEL)
    add_model(tmp_path / "models", "tensorrt_llm", MODEL)
    write_manifest(tmp_path / "models" / "tensorrt_llm" / "1", CPP_ENGINE)
    return tmp_path / "models"


def test_two_ranks_of_the_whole_repository(
    begin: Callable[..., Ranks], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BLS_ENGINE", "null")
    monkeypatch.setenv("OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS", "10")
    log = tmp_path / "log"
    ranks = begin(repository, "--world-size", "2", "--oversubscribe", "--log-file", str(log))
    ranks.read_until(r"Listening: .*\n")
    mark = ranks.mark()
    assert "starts 2 ranks; those after 0 load tensorrt_llm; note: no engine here is of TensorRT-LLM's" in ranks.output
    # Rank 1 may come later: this engine does not need it.
    until(lambda: log.read_text().count("successfully loaded 'tensorrt_llm'") == 2)
    assert log.read_text().count("successfully loaded 'openai_bls'") == 1
    flags = ranks.of(ranks.server(1), "cmdline")
    assert {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"} < set(flags)
    assert len(os.sched_getaffinity(ranks.server(0))) == len(os.sched_getaffinity(0))

    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    status, whole = request(ranks.ports.openai, "/v1/chat/completions", body)
    assert status == 200
    assert whole["usage"]["completion_tokens"] == 4
    fields = {**body, "messages": json.dumps(body["messages"])}
    status, generated = request(ranks.ports.http, "/v2/models/openai_bls/generate", fields)
    assert status == 200
    assert json.loads(generated["response"])["choices"] == whole["choices"]

    # A stream that runs when the stop comes is finished, although an mpirun that is told to end kills its ranks.
    connection = http.client.HTTPConnection("127.0.0.1", ranks.ports.openai, timeout=PATIENCE)
    long = {"prompt": "What is", "max_tokens": 150, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(long), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    ranks.process.send_signal(signal.SIGINT)
    rest = response.read()
    connection.close()
    assert b'"finish_reason":"length"' in rest
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert ranks.finish() == 0
    assert ranks.family() == []
    assert regions(mark) == []


def request(port: int, path: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_a_rank_that_is_killed_ends_the_job_with_a_sentence(begin: Callable[..., Ranks], echo: Path) -> None:
    """All ranks start again, once; then there is no restart left."""
    # The manifest alone says that there are two.
    ranks = begin(echo, "--oversubscribe", "--restarts", "1")
    ranks.read_until(r"Listening: .*\n")
    os.kill(ranks.server(1), signal.SIGKILL)
    ranks.read_until(r"starting the server again\n(.*\n)*.*Listening: .*\n")
    mark = ranks.mark()
    assert answer(post(ranks.ports.http, "two")) == "two"
    assert "note:" not in ranks.output
    os.kill(ranks.server(1), signal.SIGKILL)
    assert ranks.finish() == 128 + signal.SIGKILL, ranks.output
    errors = [line for line in ranks.output.splitlines() if "error:" in line]
    assert len(errors) == 2
    for error in errors:
        # An mpirun that is too slow to say how is killed.
        assert re.search(r"rank 1 of 2 (on \S+ was ended by signal 9 \(Killed\)|ended), and the others were", error)
    assert ranks.family() == []
    assert regions(mark) == []


def test_a_rank_whose_model_does_not_load_says_why(begin: Callable[..., Ranks], echo: Path) -> None:
    (echo / "tensorrt_llm" / "1" / "model.py").write_text(
        "import os\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        "        if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "            raise ValueError('this rank has no GPU')\n"
    )
    ranks = begin(echo, "--oversubscribe")
    assert ranks.finish() == 1
    errors = [line for line in ranks.output.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "model tensorrt_llm failed to load: ValueError: this rank has no GPU; rank 1 of 2 ended" in errors[0]
    assert ranks.family() == []


def test_two_machines(begin: Callable[..., Ranks], echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second machine is this one, reached by a stand-in for ssh that comes with an empty environment."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        "shift\n"
        'exec env -i HOME="$HOME" PATH=/usr/bin:/bin LAUNCHER_TEST_TAG="$LAUNCHER_TEST_TAG" sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("OPENAI_BLS_ENGINE_NUM_THREADS", "1")
    monkeypatch.setenv("OPENAI_BLS_API_KEY", "secret")
    agent = ("--prtemca", "plm_ssh_agent", str(ssh))
    hosts = f"{socket.gethostname()}:1,elsewhere:1"
    ranks = begin(echo, "--hosts", hosts, *(f"--mpirun-arg={word}" for word in agent))
    ranks.read_until(r"Listening: .*\n")
    assert answer(post(ranks.ports.http, "far")) == "far"
    elsewhere = ranks.of(ranks.server(1), "environ")
    assert "OPENAI_BLS_ENGINE_NUM_THREADS=1" in elsewhere
    assert "OPENAI_BLS_API_KEY=secret" not in elsewhere
    ranks.process.send_signal(signal.SIGINT)
    ranks.read_until("stopping")
    until(lambda: not [pid for pid in ranks.family() if "OMPI_COMM_WORLD_RANK=0" in ranks.of(pid, "environ")])
    ranks.process.send_signal(signal.SIGINT)
    ranks.finish()
    until(lambda: ranks.family() == [])
