"""The engine that `make serve` serves: that of MODEL, whoever built another one in between."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings, strategies

from tests.paths import ROOT

MODELS = ("demo/checkpoint", "demo/vision-checkpoint", "smollm2", "owner/name")
_BUILD = """#!/bin/sh
# Stands for .venv/bin/python: of all that make runs, only the build does something.
while [ "$1" != --model ]; do shift; done
echo "$2" > "$MADE"
"""


class Checkout:
    """A .venv that is installed, and what a build would write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, folder / "engine.json"
        (folder / "bin").mkdir()
        (folder / "bin" / "python").write_text(_BUILD)
        (folder / "bin" / "python").chmod(0o755)
        for name in (".made", ".installed"):
            (folder / name).touch()

    def make(self, model: str) -> None:
        given = [f"MODEL={model}", f"VENV={self.folder}", f"MANIFEST={self.manifest}"]
        environ = {**os.environ, "MADE": str(self.manifest)}
        subprocess.run(["make", "--silent", "engine", *given], cwd=ROOT, env=environ, check=True, timeout=60)

    def build_by_hand(self, model: str) -> None:
        self.manifest.write_text(f"{model}\n")

    def age(self) -> None:
        """Let a second pass, which the file system's clock may not resolve."""
        for path in (self.manifest, *self.folder.glob(".engine-*")):
            at = path.stat().st_mtime_ns - 10**9
            os.utime(path, ns=(at, at))


@settings(max_examples=8, deadline=None)
@given(strategies.lists(strategies.tuples(strategies.booleans(), strategies.sampled_from(MODELS)), max_size=5))
@example([(False, MODELS[0]), (True, MODELS[1]), (False, MODELS[0])])
def test_the_model_asked_for_is_served(steps: list[tuple[bool, str]]) -> None:
    with TemporaryDirectory() as scratch:
        checkout = Checkout(Path(scratch))
        for by_hand, model in steps:
            checkout.build_by_hand(model) if by_hand else checkout.make(model)
            assert checkout.manifest.read_text().strip() == model
            checkout.age()
