"""The pages' code blocks that need nothing but a server, and the programs of clients/, against the real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ROOT
from tests.triton.playground.page_shell import Shell
from tests.unit.docs.blocks import Block, all_blocks, client_files, matches, may_run

pytestmark = pytest.mark.triton

BLOCKS = [block for block in all_blocks() if may_run(block)]
ANSWER = "The capital of France is Paris."
CLIENTS_PYTHON = ROOT / ".venv-clients" / "bin" / "python"

Done = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def shell(server: RunningServer, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("checkout"), repository, server)


@pytest.fixture(scope="module")
def done(shell: Shell) -> Iterator[Done]:
    """Two at a time, since most of their time goes into imports."""

    def run_client(path: Path) -> subprocess.CompletedProcess[str]:
        language = {".py": "python", ".sh": "bash", ".mjs": "node"}[path.suffix]
        theirs = path.name.startswith(("langchain", "litellm", "llamaindex"))
        code = path.read_text(encoding="utf-8")
        return shell.run(language, code, CLIENTS_PYTHON if theirs else Path(sys.executable))

    with ThreadPoolExecutor(2) as pool:
        runs = {block.name: pool.submit(shell.run, block.language, block.code) for block in BLOCKS}
        runs |= {path.name: pool.submit(run_client, path) for path in client_files() if runs_here(path)}
        yield lambda name: runs[name].result()


def runs_here(path: Path) -> bool:
    return path.suffix != ".mjs" or shutil.which("node") is not None


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block(block: Block, done: Done) -> None:
    result = done(block.name)
    assert result.returncode == 0, result.stdout + result.stderr
    if block.output is not None:
        assert matches(block.output, result.stdout), result.stdout


@pytest.mark.parametrize("path", client_files(), ids=lambda path: path.name)
def test_a_client(path: Path, done: Done) -> None:
    if not runs_here(path):
        pytest.skip("Node is not installed")
    result = done(path.name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip().endswith(ANSWER)


def test_the_protocol_as_go_and_java_write_it(server: RunningServer) -> None:
    """docs/guides/triton.md: text in `contents`, chunks behind a length of four bytes, an end that is marked."""
    import grpc

    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'
    request = service_pb2.ModelInferRequest(model_name="openai_bls")
    tensor = request.inputs.add(name="request", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(body.encode())
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    answers, ended = [], False
    with grpc.insecure_channel(server.grpc_url) as channel:
        for message in service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request])):
            assert not message.error_message
            response = message.infer_response
            if response.raw_output_contents:
                (raw,) = response.raw_output_contents
                assert np.array_equal(deserialize_bytes_tensor(raw), [raw[4:]])
                answers.append(raw[4:].decode())
            ended = response.parameters["triton_final_response"].bool_param
    assert ended
    assert len(answers) == 1
    assert ANSWER in answers[0]
