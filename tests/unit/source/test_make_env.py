"""Environments of the Makefile: with pip, whatever the Python brings, or one sentence before anything is installed."""

from __future__ import annotations

import ensurepip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

BUNDLED = str(Path(ensurepip.__file__).parent / "_bundled")
# As Debian's Python is without python3-venv, without pip too, or without its shared library.
NO_ENSUREPIP = "import sys; sys.modules['ensurepip'] = None\n"
NO_PIP = NO_ENSUREPIP + "sys.modules['pip'] = None\n"
NO_LIBRARY = "import sysconfig; sysconfig.get_config_var = lambda _: None\nimport sys; sys.base_prefix = '/nowhere'\n"
OTHER_PYTHON = "import sys; sys.version_info = (3, {}, 0)\n"


def made(tmp_path: Path, *flags: str, python: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(python)
    environ = {name: value for name, value in os.environ.items() if "PIP_" not in name and name != "V"}
    environ |= {"PYTHONPATH": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*", **variables}
    command = [sys.executable, str(ROOT / "build" / "make_env.py"), *flags, str(tmp_path / "made")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_without_ensurepip_pip_installs_pip(tmp_path: Path) -> None:
    done = made(tmp_path, "--server", python=NO_ENSUREPIP, PIP_NO_INDEX="1", PIP_FIND_LINKS=BUNDLED)
    assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run([tmp_path / "made/bin/pip", "--version"], capture_output=True, text=True, check=True)
    assert str(tmp_path / "made") in said.stdout


def test_without_ensurepip_and_a_connection(tmp_path: Path) -> None:
    done = made(tmp_path, python=NO_ENSUREPIP, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert done.returncode != 0
    assert "no connection to the package index" in done.stdout
    assert (len(done.stdout.splitlines()), done.stderr) == (3, "")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (OTHER_PYTHON.format(9), "not Python 3.10 to 3.12"),
        (OTHER_PYTHON.format(13), "not Python 3.10 to 3.12"),
        (NO_PIP, "python3-venv"),
        (NO_LIBRARY, "libpython3"),
    ],
)
def test_what_a_python_lacks_is_said_before_anything_is_installed(tmp_path: Path, python: str, said: str) -> None:
    done = made(tmp_path, "--server", python=python)
    assert done.returncode == 1
    assert said in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert not (tmp_path / "made").exists()
