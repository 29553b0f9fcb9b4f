"""Installer of wheels into an image's own Python that leaves the image's packages as they are.

    python3 docker/install.py wheels/openai_bls-0.1.0-py3-none-any.whl

Every package that is there before becomes a constraint for pip, so that pip fails where a dependency does not fit,
instead of replacing numpy, torch or TensorRT-LLM. What is there afterwards is compared with what was there before.
The standard library and pip are all it takes.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# pip's own copy: the image need not have another, and what it cannot read must not reach pip.
from pip._vendor.packaging.version import InvalidVersion, Version


def installed() -> dict[str, str]:
    """Version by normalised name of every distribution on this interpreter's path, the first one if there are two."""
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(_normalised(name), distribution.version)
    return found


def constraints(packages: dict[str, str]) -> list[str]:
    """A line for pip for each package.

    A version that is none by PEP 440 (Debian's own packages have such) cannot be written as a constraint; the
    comparison afterwards covers it.
    """
    return [f"{name}=={version}" for name, version in sorted(packages.items()) if _is_valid(version)]


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Changes of the packages, a phrase for each; empty if there are none."""
    return [
        f"{name} {version} became {after[name]}" if name in after else f"{name} {version} is gone"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def main(arguments: list[str] | None = None) -> int:
    """Install; returns the exit status."""
    parser = argparse.ArgumentParser(prog="install.py", description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", metavar="WHEEL")
    given = parser.parse_args(arguments)
    before = installed()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "constraints.txt"
        kept.write_text("\n".join(constraints(before)))
        pip = [sys.executable, "-m", "pip", "install", "--constraint", str(kept), *given.wheels]
        if subprocess.run(pip, check=False).returncode != 0:
            return _fail(
                "pip could not install it beside the packages of this image, which must stay as they are (its own words"
                " are above). If it was a conflict, take another TRITON_TAG"
            )
    after = installed()
    if wrong := changes(before, after):
        return _fail(f"packages of this image were changed that must stay as they are: {'; '.join(wrong)}")
    print(f"kept: {len(before)} packages; added: {', '.join(sorted(after.keys() - before.keys()))}")
    return 0


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_valid(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
