"""A source tree without an installed distribution: it works, or says in one sentence what to run."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As a path file, which may name several folders, has them.
PACKAGES = [path for path in sys.path if Path(path).name == "site-packages"] or [sysconfig.get_path("purelib")]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """All installed packages but this one, whose record is left out too."""
    site = tmp_path / "site-packages"
    site.mkdir()
    for packages in reversed(PACKAGES):
        for path in Path(packages).iterdir():
            if not path.name.startswith(("openai_bls", "_")) and path.suffix != ".pth":
                (site / path.name).unlink(missing_ok=True)
                (site / path.name).symlink_to(path)
    return site


def run(*words: str, path: Sequence[Path] = (), cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # -S leaves out what is installed.
    env = {"PYTHONPATH": ":".join(str(part) for part in path), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-S", *words], env=env, cwd=cwd, check=False, text=True, capture_output=True)


@pytest.mark.parametrize("words", [["build/engine.py"], ["build/verify.py"], ["-m", "openai_bls", "doctor"]])
def test_without_packages(words: list[str], tmp_path: Path) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install -e ." in done.stderr


def test_without_a_record(site: Path) -> None:
    """An engine loads, and the command line and the record of a build know the version."""
    code = """
import importlib.metadata
from pathlib import Path
try:
    raise SystemExit(importlib.metadata.version("openai_bls"))
except importlib.metadata.PackageNotFoundError:
    pass
from openai_bls.builder.build import _versions
from openai_bls.engines.registry import create_engine
create_engine(Path("nowhere"), lambda deltas: None, {"engine": "null"}).close()
print(_versions()["openai_bls"])
"""
    done = run("-c", code, path=[ROOT, site])
    assert done.returncode == 0, done.stderr
    assert run("-m", "openai_bls", "--version", path=[site]).stdout.split()[1] == done.stdout.strip()
