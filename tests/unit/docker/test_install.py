"""docker/install.py on a Python that stands in for NVIDIA's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.unit.docker import wheels

Install = Callable[..., subprocess.CompletedProcess[str]]
NVIDIA = {
    "llguidance": "0.7.29",
    # In no index, so that pip could only replace it, never get it again.
    "numpy": "1.26.4+nvidia",
    "tensorrt-llm": "1.2.1",
    "torch": "2.10.0a0+nvidia",
    "transformers": "4.57.3",
    "xgrammar": "0.1.32",
    # As Debian writes versions, which pip cannot.
    "python-apt": "2.7.7build1",
}
"""Packages of NVIDIA's image that must stay, and their versions."""


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """Those of a Python with pip, and the names and versions of what matters in NVIDIA's image."""
    folder = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    made = next(folder.glob("lib/python3*/site-packages"))
    for entry in Path(str(metadata.distribution("pip").locate_file(""))).glob("pip*"):
        (made / entry.name).symlink_to(entry)
    pins = [f"{name}=={NVIDIA[name]}" for name in ("llguidance", "transformers", "xgrammar")]
    for name, version in NVIDIA.items():
        wheels.pretend(made, name, version, *(pins if name == "tensorrt-llm" else ()))
    return made


@pytest.fixture
def install(tmp_path: Path, site_packages: Path) -> Install:
    """Runs docker/install.py there, with the wheels of `tmp_path` and without a network or this machine's settings."""
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INDEX": "1",
    }
    python = site_packages.parents[2] / "bin" / "python3"

    def run(wheel: Path, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), str(ROOT / "docker" / "install.py"), *options, str(wheel)]
        return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)

    return run


def versions(site_packages: Path) -> dict[str, str]:
    names = (
        path.name.removesuffix(".dist-info").rpartition("-")
        for path in site_packages.glob("*.dist-info")
        if not path.is_symlink()
    )
    return {name.replace("_", "-"): version for name, _, version in names}


def test_what_is_there_stays(tmp_path: Path, site_packages: Path, install: Install) -> None:
    wheels.empty(tmp_path, "llguidance", "1.9.1")
    wheels.empty(tmp_path, "new", "2.0")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "llguidance", "new", "numpy>=1.26"))
    assert done.returncode == 0, done.stderr
    assert "added: new, ours" in done.stdout
    assert versions(site_packages) == {**NVIDIA, "new": "2.0", "ours": "1.0"}


def test_a_conflict_is_an_error_and_changes_nothing(tmp_path: Path, site_packages: Path, install: Install) -> None:
    wheels.empty(tmp_path, "numpy", "2.4.0")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "numpy>=2"))
    assert done.returncode == 1
    # pip's own words name both sides; ours say what to do.
    assert "ours 1.0 depends on numpy>=2" in done.stdout
    assert "numpy==1.26.4+nvidia" in done.stdout
    assert "take another TRITON_TAG" in done.stderr
    assert versions(site_packages) == NVIDIA


def test_what_pip_cannot_be_told_to_keep_is_compared_afterwards(tmp_path: Path, install: Install) -> None:
    # 2.7.7build1 is no version by pip's rules, so it cannot be a constraint.
    wheels.empty(tmp_path, "python-apt", "3.0")
    done = install(wheels.empty(tmp_path, "ours", "1.0", "python-apt>=3"))
    assert done.returncode == 1
    assert "python-apt 2.7.7build1" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("wrong", ["", "hash", "lacking"])
def test_what_is_added_comes_from_the_lock(tmp_path: Path, site_packages: Path, install: Install, wrong: str) -> None:
    """By its hashes, with no look at what the image has; nothing comes from elsewhere."""
    for name, version, needs in (
        ("new", "2.0", ["other"]),
        ("new", "3.0", []),
        ("other", "1.0", []),
        ("numpy", "2.4.0", []),
    ):
        wheels.empty(tmp_path, name, version, *needs)
    lock = tmp_path / "lock.txt"
    digest = hashlib.sha256((tmp_path / "new-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    other = hashlib.sha256((tmp_path / "other-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    lines = [
        "# comment",
        f"new==2.0 \\\n    --hash=sha256:{'0' * 64 if wrong == 'hash' else digest}",
        "numpy==2.4.0 ; python_version >= '3.8' \\\n    --hash=sha256:" + "0" * 64,
        *([] if wrong == "lacking" else [f"other==1.0 \\\n    --hash=sha256:{other}"]),
    ]
    lock.write_text("\n".join([*lines, ""]))
    library = wheels.empty(tmp_path, "ours", "1.0", "new", "numpy>=1.26")
    if wrong == "lacking":
        # As if there were no index.
        (tmp_path / "other-1.0-py3-none-any.whl").unlink()
    done = install(library, "--lock", str(lock))
    if not wrong:
        assert done.returncode == 0, done.stdout + done.stderr
        assert versions(site_packages) == {**NVIDIA, "new": "2.0", "other": "1.0", "ours": "1.0"}
    else:
        assert done.returncode == 1
        assert ("DO NOT MATCH" in done.stderr) == (wrong == "hash")
        assert "ours" not in versions(site_packages)
