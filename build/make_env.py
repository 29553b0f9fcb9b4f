"""An environment of the Makefile, with pip: `python3 build/make_env.py [--server] [--system-site-packages] .venv`.

Needs nothing but the Python that the environment is made with. What that Python lacks is said here, in one sentence,
and not behind gigabytes of packages. Debian's and Ubuntu's come without ensurepip: their pip then installs pip.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def problem(*, server: bool) -> str:
    """What this Python lacks; empty if nothing.

    Args:
        server: whether the server of the nvidia-pytriton wheel is to run in the environment.
    """
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return (
            f"{sys.executable} is not Python 3.10 to 3.12, and there is no server for another: give one, as in"
            " make PYTHON=python3.11 serve"
        )
    if server:
        sys.path.insert(0, str(_HERE.parent))
        # It imports nothing but the standard library either, of these versions.
        from openai_bls.launcher.tritonserver.command import library_folder, missing_library

        if library_folder() is None:
            return missing_library()
    if not _has("ensurepip") and not _has("pip"):
        return f"{sys.executable} has no pip: install it, on Debian and Ubuntu by `apt install python3-venv`"
    return ""


def make(folder: Path, flags: list[str]) -> int:
    """Make the environment; returns the exit status."""
    if _has("ensurepip"):
        return _run("-m", "venv", *flags, str(folder))
    status = _run("-m", "venv", "--without-pip", *flags, str(folder))
    if status:
        return status
    spec = importlib.util.find_spec("pip")
    assert spec is not None
    assert spec.origin is not None
    environ = {**os.environ, "PYTHONPATH": str(Path(spec.origin).parents[1])}
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--ignore-installed", "pip"]
    step = [str(_HERE / "step.py"), f"installing pip into {folder}", "--log", str(folder / "install.log"), "--"]
    return _run(*step, *install, environ=environ)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _run(*words: str, environ: dict[str, str] | None = None) -> int:
    return subprocess.run([sys.executable, *words], env=environ, check=False).returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--system-site-packages", action="store_true")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    said = problem(server=options.server)
    if said:
        sys.stderr.write(f"error: {said}\n")
        return 1
    sys.stdout.write(f"making {options.folder} with {sys.executable}\n")
    sys.stdout.flush()
    return make(options.folder, ["--system-site-packages"] if options.system_site_packages else [])


if __name__ == "__main__":
    sys.exit(main())
