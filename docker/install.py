"""Installer of wheels into an image's own Python that leaves the image's packages as they are.

    python3 docker/install.py --lock requirements/image.txt wheels/openai_bls-0.1.0-py3-none-any.whl [WHEEL ...]

Every package that is there before becomes a constraint for pip, so that pip fails where a dependency does not fit,
instead of replacing numpy, torch or TensorRT-LLM. What is there afterwards is compared with what was there before.
With --lock all that is added comes from that file, by its hashes: first what the image lacks of it, then the wheels,
for which pip looks nowhere else. --extras are the first wheel's. The standard library and pip are all it takes.
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


def missing(lock: str, packages: dict[str, str]) -> str:
    """The entries of a lock file, with their hashes, whose packages are not there."""
    entries = re.findall(r"^[A-Za-z0-9].*\n(?:[ ].*\n)*", lock, re.MULTILINE)
    return "".join(entry for entry in entries if _normalised(re.split(r"[=\[ ;]", entry)[0]) not in packages)


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
    parser.add_argument("--lock", type=Path, metavar="FILE", help="versions and hashes of what may be added")
    parser.add_argument("--extras", default="", metavar="NAME[,NAME]", help="extras of the first wheel")
    parser.add_argument("wheels", nargs="+", metavar="WHEEL")
    given = parser.parse_args(arguments)
    pip = [sys.executable, "-m", "pip", "install"]
    before = installed()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "constraints.txt"
        extras = f"[{given.extras}]" if given.extras else ""
        library, *engines = given.wheels
        wheels = ["--constraint", str(kept), library + extras, *engines]
        if given.lock is not None:
            added = Path(folder) / "added.txt"
            added.write_text(missing(given.lock.read_text(encoding="utf-8"), before), encoding="utf-8")
            # Whether they fit each other and what is there, pip finds out with the wheels.
            locked = ["--no-deps", "--require-hashes", "--requirement", str(added)]
            if subprocess.run([*pip, *locked], check=False).returncode != 0:
                return _fail(f"pip could not install what {given.lock} has (its own words are above)")
            wheels.insert(0, "--no-index")
        kept.write_text("\n".join(constraints(installed())))
        if subprocess.run([*pip, *wheels], check=False).returncode != 0:
            return _fail(
                "pip could not install it beside the packages of this image, which must stay as they are (its own words"
                " are above). If it was a conflict, take another TRITON_TAG"
                + (f", or do without {extras} (--build-arg EXTRAS=)" if extras else "")
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
