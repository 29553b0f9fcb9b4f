"""A step of the Makefile in a few lines: what it does, how far it is, how long it took. Its output goes to a file.

    python build/step.py "installing the packages" --log .venv/install.log --of requirements/serve.txt -- COMMAND ...

`--of` names lock files, whose packages are what pip goes through. On a terminal one line is kept up to date; elsewhere
a line comes after 10 s, 30 s, 90 s and so on, so that it is a few lines however long it takes. A command that fails
shows the end of its output. V=1 in the environment shows all of it, as it comes. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_TAIL_LINES = 20
_FIRST_PROGRESS_S = 10.0
_COLUMNS = 100
"""Characters of the line on a terminal."""
# What pip says of each try while there is no connection. Its last line is that there is no such package.
_NO_CONNECTION = re.compile(
    r"NewConnectionError|ConnectTimeoutError|NameResolutionError|name resolution|Network is unreachable"
    r"|Name or service not known|Connection refused|Cannot connect to proxy"
)
_LIVE = {**os.environ, "PYTHONUNBUFFERED": "1"}
# pip's own words for a package that it looks at, and for what it does at the end.
_PACKAGE = re.compile(r"^\s*(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
_INSTALLING = re.compile(r"^Installing collected packages")


class Progress:
    """Line about a running step.

    Args:
        name: what the step does.
        total: packages that pip goes through; 0 if nobody knows.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._began = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._next = _FIRST_PROGRESS_S
        self._seen: set[str] = set()
        self._doing = ""

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._began

    def take(self, line: str) -> None:
        """Take one line of the command's output in."""
        if match := _PACKAGE.match(line):
            self._seen.add(match[1].lower())
            self._doing = match[1]
        elif _INSTALLING.match(line):
            self._doing = "putting them in place"
        if self._terminal:
            print(f"\r{self.line()[:_COLUMNS]:{_COLUMNS}}", end="", flush=True)
        elif self.seconds >= self._next:
            print(self.line(), flush=True)
            while self._next <= self.seconds:
                self._next *= 3

    def line(self) -> str:
        """The step as it is just now."""
        count = len(self._seen)
        done = f"{min(count, self._total)} of {self._total}" if self._total else f"{count}" if count else ""
        parts = [part for part in (done, self._doing) if part]
        return f"{self._name}{': ' if parts else ''}{', '.join(parts)} ({self.seconds:.0f} s)"

    def end(self, text: str) -> None:
        """The last line."""
        shown = f"{self._name}: {text} ({self.seconds:.0f} s)"
        print(f"\r{shown:{_COLUMNS}}" if self._terminal else shown, flush=True)


def packages(locks: Sequence[Path]) -> int:
    """Number of the packages that these lock files name."""
    return sum(len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE)) for lock in locks)


def run(name: str, log: Path, locks: Sequence[Path], command: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if os.environ.get("V") == "1":
        print(name, flush=True)
        return subprocess.run(command, check=False).returncode
    log.parent.mkdir(parents=True, exist_ok=True)
    progress, last = Progress(name, packages(locks)), deque[str](maxlen=_TAIL_LINES)
    offline = False
    print(f"{name} ...", end="" if sys.stdout.isatty() else "\n", flush=True)
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=_LIVE
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            last.append(line)
            offline = offline or _NO_CONNECTION.search(line) is not None
            progress.take(line)
    if process.returncode and offline:
        progress.end(f"failed: there is no connection to the package index, which this needs once (see {log})")
    elif process.returncode:
        progress.end(f"failed; all of it is in {log}")
        sys.stdout.write("".join(last))
    else:
        progress.end("done")
    return process.returncode


def main() -> int:
    """Run the step of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--log", type=Path, required=True, help="file that the output is added to")
    parser.add_argument("--of", type=Path, nargs="*", default=[], help="lock files")
    words = sys.argv[1:]
    cut = words.index("--")
    options = parser.parse_args(words[:cut])
    try:
        return run(options.name, options.log, options.of, words[cut + 1 :])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
