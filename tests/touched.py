"""Unit tests that a change touches, one path per line: `python -m tests.touched`, for `make check`.

A change is what differs from the upstream branch, or from the last commit where there is none, with files that git does
not know yet. The tests of `openai_bls/a/b.py` are `tests/unit/a/test_b.py`; without such a file, those of the
folder, or of the nearest one above it that has tests. Those of `engines/x/openai_bls_x/a/b.py` are
`engines/x/tests_x/engine/a/test_b.py`, and those of its recipe and of what is kept in `legacy` lie in folders of these
names; those of its benchmarks in `benchmarks`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
_UNIT = PurePosixPath("tests/unit")
# Folders of an engine's package whose tests lie in a folder of that name; all others are in `engine`.
_MIRRORED = ("legacy", "recipe")
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
        yield _nearest(_UNIT, PurePosixPath(*rest), root)
    elif first == "engines" and len(rest) > 2 and path.suffix == ".py":
        engine, package, *inside = rest
        tests = PurePosixPath("engines", engine, f"tests_{engine}")
        if package == f"benchmarks_{engine}":
            yield tests / "benchmarks"
        elif package == tests.name:
            yield path if path.name.startswith("test_") else path.parent
        elif package == f"openai_bls_{engine}":
            mirrored = inside[0] in _MIRRORED
            yield _nearest(tests if mirrored else tests / "engine", PurePosixPath(*inside), root)
    elif path.is_relative_to(_UNIT):
        yield path if path.name.startswith("test_") else path.parent
    elif first in _OTHERS:
        yield _UNIT / _OTHERS[first]


def _nearest(tests: PurePosixPath, path: PurePosixPath, root: Path) -> PurePosixPath:
    """Test of a module at `path` in its package, or the nearest folder in `tests` that has some."""
    folder = tests / path.parent
    while not (root / folder).exists():
        folder = folder.parent
    own = folder / f"test_{path.name}"
    return own if (root / own).exists() else folder


def _changed() -> list[str]:
    upstream = _git("rev-parse", "--abbrev-ref", "@{upstream}")
    base = _git("merge-base", "HEAD", upstream[0]) if upstream else ["HEAD"]
    return _git("diff", "--name-only", *base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    """Lines of a git command's output; none if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{path}\n" for path in touched(_changed())))
