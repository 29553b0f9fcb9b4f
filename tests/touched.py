"""Unit tests that a change touches, one path per line: `python -m tests.touched`, for `make check`.

A change is what differs from the upstream branch, or from the last commit where there is none, with files that git does
not know yet. The tests of `openai_bls/a/b.py` are `tests/unit/a/test_b.py`; without such a file, those of the
folder, or of the nearest one above it that has tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
_UNIT = PurePosixPath("tests/unit")
# Top-level names → tests that hold them.
_OTHERS = {
    "benchmarks": "benchmarks",
    "deploy": "deploy",
    "docker": "docker",
    "Dockerfile": "docker",
    "compose.yaml": "docker",
    "docs": "docs",
    "README.md": "docs",
    "CONTRIBUTING.md": "docs",
    "mkdocs.yml": "docs",
}


def touched(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Paths of the tests for changed files, sorted.

    Args:
        changed: paths of files in the repository, with slashes.
        root: folder of the repository.
    """
    found = {test for path in changed for test in _tests(PurePosixPath(path), root) if (root / test).exists()}
    return sorted(str(test) for test in found if not found.intersection(test.parents))


def _tests(path: PurePosixPath, root: Path) -> Iterator[PurePosixPath]:
    first, *rest = path.parts
    if first == "openai_bls" and path.suffix == ".py":
        # What the pages say of modules, settings and commands.
        yield _UNIT / "docs"
        folder = _UNIT.joinpath(*rest[:-1])
        while not (root / folder).exists():
            folder = folder.parent
        own = folder / f"test_{path.name}"
        yield own if (root / own).exists() else folder
    elif path.is_relative_to(_UNIT):
        yield path if path.name.startswith("test_") else path.parent
    elif first in _OTHERS:
        yield _UNIT / _OTHERS[first]


def _changed() -> list[str]:
    upstream = _git("rev-parse", "--abbrev-ref", "@{upstream}")
    base = _git("merge-base", "HEAD", upstream[0]) if upstream else ["HEAD"]
    return _git("diff", "--name-only", *base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    """Lines of a git command's output; none if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{path}\n" for path in touched(_changed())))
