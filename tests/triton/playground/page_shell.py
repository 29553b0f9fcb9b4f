"""Code blocks of the pages and programs of clients/, run for one server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ROOT
from tests.unit.docs.blocks import at


class Shell:
    """Runs blocks and programs for one server, in a folder that looks like a checkout with an engine."""

    def __init__(self, folder: Path, repository: Path, server: RunningServer) -> None:
        self.folder = folder
        ports = server.ports
        self.ports = {8000: ports.http, 8001: ports.grpc, 8002: ports.metrics, 9000: ports.openai}
        for name in ("build", "benchmarks", "clients", "openai_bls", "examples"):
            (folder / name).symlink_to(ROOT / name)
        shutil.copytree(repository, folder / "model_repository")
        commands = folder / "bin"
        commands.mkdir()
        # curl is content with an error of the server unless it is told not to be.
        curl = shutil.which("curl")
        (commands / "curl").write_text(f'#!/bin/sh\nexec {curl} --fail-with-body "$@"\n')
        (commands / "curl").chmod(0o755)
        path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        # LiteLLM would fetch a table of prices.
        self.env = {**os.environ, "PATH": path, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def run(self, language: str, code: str, python: Path = Path(sys.executable)) -> subprocess.CompletedProcess[str]:
        words = {
            "bash": ["bash", "-euo", "pipefail", "-c"],
            "python": [str(python), "-c"],
            "node": ["node", "--input-type=module", "--eval"],
        }
        return subprocess.run(
            [*words[language], at(code, self.ports)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
