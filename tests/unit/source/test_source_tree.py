"""A source tree without an installed distribution: it works, or says in one sentence what to run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
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
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install -e ." in done.stderr


@pytest.mark.parametrize("status", [0, 3])
def test_a_step_of_the_makefile_is_a_few_lines(status: int, tmp_path: Path) -> None:
    """Whatever the command prints; all of it is in the log, and its end is shown where it has failed."""
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(f"package{number}==1 \\\n    --hash=x\n" for number in range(300)))
    code = f"for n in range(300): print(f'Collecting package{{n}}==1')\nraise SystemExit({status})"
    words = ["installing", "--log", str(tmp_path / "log"), "--of", str(lock), "--", sys.executable, "-c", code]
    done = run("build/step.py", *words)
    lines = done.stdout.splitlines()
    assert done.returncode == status
    assert lines[0] == "installing ..."
    assert (tmp_path / "log").read_text().count("Collecting") == 300
    if status:
        assert "failed; all of it is in" in done.stdout
        assert lines[-1] == "Collecting package299==1"
    assert len(lines) < (30 if status else 8)
    spec = importlib.util.spec_from_file_location("step", ROOT / "build" / "step.py")
    assert spec is not None
    assert spec.loader is not None
    step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    progress = step.Progress("installing", step.packages([lock]))
    progress.take("Collecting package7==1 (from -r lock.txt)")
    assert progress.line().startswith("installing: 1 of 300, package7 (")


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
print(_versions(())["openai_bls"])
"""
    done = run("-c", code, path=[ROOT, site])
    assert done.returncode == 0, done.stderr
    assert run("-m", "openai_bls", "--version", path=[site]).stdout.split()[1] == done.stdout.strip()
