"""The smoke test over the real server: all is well with a good one, and a broken one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.api.registry import ENDPOINTS
from openai_bls.launcher.smoke.command import CHECKS
from openai_bls.launcher.smoke.session import QUESTION
from openai_bls.launcher.testing import RunningServer
from tests.certificates import Authority
from tests.triton.conftest import ROOT

pytestmark = pytest.mark.triton


def smoke(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "build" / "smoke.py", *argv],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def addresses(server: RunningServer) -> list[str]:
    return [
        *("--url", server.openai_url, "--triton-url", server.http_url),
        *("--grpc-url", server.grpc_url, "--metrics-url", server.metrics_url),
    ]


def test_a_good_server_passes_every_check(server: RunningServer) -> None:
    done = smoke(*addresses(server))
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    # On /v1 and on Triton's port; tests/triton/models/test_examples.py has models for them.
    others = 2 * sum(bool(endpoint.smoke and endpoint.smoke.tasks) for endpoint in ENDPOINTS)
    assert last == f"{len(CHECKS)} checks: {len(CHECKS) - others} ok, 0 not supported, {others} not checked, 0 FAILED"
    assert [line[:38].strip() for line in lines] == [check.name for check in CHECKS]


def test_for_machines_and_for_one_model(server: RunningServer) -> None:
    done = smoke("--url", server.openai_url, "--json", "--model", "openai_bls")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["summary"]["FAILED"] == 0
    # Triton's ports were not given, which is told and is no failure.
    unchecked = [check for check in document["checks"] if check["status"] == "not checked"]
    details = {check["detail"] for check in unchecked if "openai_task" not in check["detail"]}
    assert details == {"needs --triton-url", "needs --grpc-url", "needs --metrics-url"}
    wrong = smoke("--url", server.openai_url, "--json", "--model", "another")
    assert wrong.returncode == 1
    assert by_name(wrong)["chat/completions"]["detail"].startswith("HTTP 404: The model 'another' does not exist")


def test_a_server_of_its_own_whose_engine_fails(server: RunningServer, repository: Path, tmp_path: Path) -> None:
    """Over HTTPS, with a certificate of the client."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    tokens = httpx.post(f"{server.openai_url}/tokenize", json={"prompt": QUESTION}).json()["tokens"]
    environment = {
        "OPENAI_BLS_ENGINE": "null",
        "OPENAI_BLS_ENGINE_NULL_FAIL_ON_TOKEN_ID": str(tokens[-1]),
        "OPENAI_BLS_API_KEY": "secret",
        "OPENAI_BLS_SSL_CA_CERTS": str(authority.file),
        **{f"OPENAI_BLS_{name.upper()}": path for name, path in authority.settings().items()},
    }
    files = ["--model-repository", str(repository), "--ca-file", str(authority.file)]
    files += ["--client-certfile", str(certificate), "--client-keyfile", str(key)]
    done = smoke(*files, "--json", **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    checks = by_name(done)
    for name in ("chat/completions", "chat/completions, streamed", "generate", "ensemble, whole and streamed"):
        assert checks[name]["status"] == "FAILED"
    assert "HTTP 5" in checks["chat/completions"]["detail"]
    # What needs no engine is well, and what this one does not do it says.
    assert checks["GET /v1/models"]["status"] == "ok"
    assert checks["bad request: no JSON"]["status"] == "ok"
    assert checks["POST /v1/embeddings"]["status"] == "not supported"
    assert checks["chat/completions, json_schema"]["status"] == "not supported"


def by_name(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}
