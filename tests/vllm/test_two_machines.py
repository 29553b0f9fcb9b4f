"""The real vLLM over two machines on loopback: `openai-bls engine` on the first one, `--headless` on the second.

The second machine's worker is killed under load: that is an error to all requests at once, and the end of both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from openai_bls.core.engine_types import GenerationRequest, SamplingParams, TokenDelta
from openai_bls.transport.engine_process.address import parse
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.source import RemoteProcess
from tests.unit.engines.vllm.multi_node.support import machines
from tests.vllm_python import vllm_python

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "demo" / "checkpoint"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "The capital of France is Paris."
PATIENCE_S = 900.0
STREAMS = 6


class Answers:
    """A listener that keeps what each request got."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, TokenDelta] = {}

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        with self._changed:
            for delta in deltas:
                self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
                if delta.finish_reason is not None:
                    self.ends[delta.request_id] = delta
            self._changed.notify_all()

    def wait(self, ids: Sequence[int], *, ended: bool) -> None:
        """Until all of these have ended, or have begun."""
        with self._changed:
            done = self._changed.wait_for(lambda: set(ids) <= set(self.ends if ended else self.tokens), PATIENCE_S)
        assert done, f"no {'end' if ended else 'token'} for {set(ids) - set(self.ends if ended else self.tokens)}"


def request(number: int, max_tokens: int) -> GenerationRequest:
    ids = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).encode(QUESTION, add_special_tokens=False).ids
    return GenerationRequest(
        request_id=number, prompt_token_ids=ids, max_tokens=max_tokens, sampling=SamplingParams(temperature=0)
    )


def descendants(pid: int) -> list[int]:
    """Processes below a process."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text(encoding="utf-8").split()):
            found += [child, *descendants(child)]
    return found


def title(pid: int) -> bytes:
    """Name that a process gives itself; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo for vLLM in two ranks."""
    repository = tmp_path_factory.mktemp("vllm") / "models"
    options = ("--engine", "vllm", "--model", str(CHECKPOINT), "--engine-python", vllm_python(), "--tp-size", "2")
    command = ["build", "--model-repository", str(repository), *options, "--max-batch-size", "8", "--no-self-test"]
    subprocess.run([sys.executable, "-m", "openai_bls", *command], check=True, timeout=PATIENCE_S)
    return repository / "tensorrt_llm" / "1"


@pytest.fixture
def two_machines(model_dir: Path, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The first one listens on `engine.sock`; their logs are `0.log` and `1.log`."""
    first, _ = machines(2)
    network = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    running = []
    with ExitStack() as stack:
        for rank, place in enumerate((["--socket", str(tmp_path / "engine.sock")], ["--headless"])):
            options = ["nnodes=2", f"node_rank={rank}", "master_addr=127.0.0.1", f"master_port={first.master_port}"]
            words = [word for option in options for word in ("--option", option)]
            log = stack.enter_context((tmp_path / f"{rank}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "openai_bls", "engine", "--model-dir", str(model_dir), *place, *words],
                env={**os.environ, **network, "OPENAI_BLS_ENGINE_PYTHON": vllm_python()},
                stdout=log,
                stderr=log,
            )
            running.append(process)
            # The guardian takes along what it has started; the second machine waits for the first.
            stack.callback(process.wait, PATIENCE_S)
        try:
            yield running
        finally:
            for process in running:
                process.terminate()


@pytest.mark.multi_node
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_worker_of_the_second_machine_is_killed(two_machines: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    answers = Answers()
    engine = ProcessEngine(RemoteProcess(parse(f"unix:{tmp_path / 'engine.sock'}"), 120.0), answers, silence_s=120)
    try:
        engine.submit(request(0, 20))
        answers.wait([0], ended=True)
        text = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).decode(answers.tokens[0])
        assert text.startswith(ANSWER)

        streams = range(1, 1 + STREAMS)
        for number in streams:
            engine.submit(request(number, 1900))
        answers.wait(streams, ended=False)
        family = [pid for process in two_machines for pid in descendants(process.pid)]
        (worker,) = [pid for pid in descendants(two_machines[1].pid) if title(pid).startswith(b"VLLM::Worker")]
        os.kill(worker, signal.SIGKILL)
        answers.wait(streams, ended=True)
        assert {answers.ends[number].finish_reason for number in streams} == {"error"}
        codes = [process.wait(PATIENCE_S) for process in two_machines]
        assert codes == [3, 2]
        assert not [title(pid) for pid in family if title(pid).startswith(b"VLLM::")]
        said = (tmp_path / "1.log").read_text(encoding="utf-8", errors="replace")
        assert "openai_bls: error: vLLM's workers of machine 1 failed: a worker has died" in said
    finally:
        engine.close()
