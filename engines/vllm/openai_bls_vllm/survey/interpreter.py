"""Interpreter with vLLM: where one is looked for, and what it says of itself. Nothing here imports vllm.

vLLM pins other versions of packages than Triton's Python has, so it lives in an environment of its own and runs in a
process of its own. `script` is what such an interpreter is asked with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.settings import ENV_PREFIX
from openai_bls_vllm.versions import NEWEST, OLDEST, Version

VARIABLE = f"{ENV_PREFIX}ENGINE_PYTHON"
"""Environment variable that names the interpreter."""
ENVIRONMENT = ".venv-vllm"
"""Folder in which `openai-bls install-engine vllm` makes the environment, unless told otherwise."""
INSTALL_HINT = f"run `openai-bls install-engine vllm`, or name an interpreter that has it (--engine-python, {VARIABLE})"

_SCRIPT = Path(__file__).with_name("script.py")
_FIND_SECONDS = 60.0
_ASK_SECONDS = 600.0
"""An import of vLLM takes 15 s on an idle machine, and minutes on a busy one."""
_TAIL_LINES = 3


class Device(msgspec.Struct, frozen=True):
    """GPU that vLLM sees."""

    name: str
    memory_bytes: int
    compute_capability: str = ""


class Survey(msgspec.Struct, frozen=True):
    """Findings about an interpreter."""

    python: str
    """Version of Python, e.g. `3.12.3`."""
    has_vllm: bool = False
    version: str = ""
    """Version of vLLM, e.g. `0.32.0`; empty if it does not say."""
    failure: str = ""
    """Reason why vLLM cannot be imported; empty if it can, or was not imported."""
    device_type: str = ""
    """vLLM's platform: `cpu`, `cuda`, ...; empty if vLLM was not imported."""
    devices: list[Device] = []
    """GPUs; empty on a CPU."""
    fields: list[str] = []
    """Names of the fields of AsyncEngineArgs; empty if vLLM was not imported."""
    refusal: str = ""
    """Reason why vLLM takes no such model or arguments; empty if it takes them, or was not asked."""
    max_model_len: int = 0
    """Tokens of prompt and output that vLLM gives the model; 0 if it was not asked."""
    architecture: str = ""
    """Class of the model in vLLM, e.g. `Qwen2ForCausalLM`."""
    dtype: str = ""
    """Data type that vLLM computes the model in."""
    quantization: str = ""
    """Quantization that vLLM runs the model with."""
    takes_images: bool = False
    """Whether prompts of the model may hold images: vLLM has a processor for them, and its files are there."""


def find_interpreter(named: str, environ: Mapping[str, str], folders: Iterable[Path]) -> str:
    """Path of an interpreter with vLLM.

    Args:
        named: value of --engine-python: a path, or a command on PATH; empty if it was not given.
        environ: environment variables; `VARIABLE` comes next.
        folders: folders where the environment of `install-engine` may lie; last comes the interpreter that runs this.

    Returns:
        An absolute path, with its symbolic links: those of an environment lead out of it.

    Raises:
        EngineLoadError: the one that was named is none, or no place has one; one sentence.
    """
    for source, value in (("--engine-python", named), (VARIABLE, environ.get(VARIABLE, ""))):
        if value:
            return located(value, source)
    for folder in folders:
        own = folder / ENVIRONMENT / "bin" / "python"
        if os.access(own, os.X_OK):
            return str(own.absolute())
    if find(sys.executable).has_vllm:
        return sys.executable
    raise EngineLoadError(f"there is no vLLM here: {INSTALL_HINT}")


def located(value: str, source: str) -> str:
    """Absolute path of the interpreter `value`, which `source` names.

    Raises:
        EngineLoadError: there is no such command; one sentence.
    """
    found = shutil.which(str(Path(value).expanduser()) if "/" in value else value)
    if found is None:
        raise EngineLoadError(f"{source} {value} is no command that can be run: {INSTALL_HINT}")
    return str(Path(found).absolute())


def find(python: str) -> Survey:
    """Version of vLLM in the environment of `python`, which is not imported.

    Raises:
        EngineLoadError: it is no Python interpreter that runs.
    """
    return _run(python, ["find"], {}, _FIND_SECONDS)


def ask(python: str, values: Mapping[str, Any], seconds: float | None = _ASK_SECONDS) -> Survey:
    """What the vLLM of `python` says of itself, and of a model.

    Args:
        python: path of the interpreter.
        values: fields of AsyncEngineArgs; empty asks about no model.
        seconds: longest wait for the answer; None waits for its end.

    Raises:
        EngineLoadError: there is no vLLM, none of a known version, or none that can be imported; one sentence.
    """
    require_version(python, find(python))
    survey = _run(python, ["ask"], values, seconds)
    if survey.failure:
        raise EngineLoadError(f"vLLM {survey.version} of {python} cannot be imported: {survey.failure}")
    require_version(python, survey)
    return survey


def require_version(python: str, survey: Survey) -> None:
    """Refuse an interpreter without vLLM, or with a version outside the range.

    Raises:
        EngineLoadError: one sentence.
    """
    if not survey.has_vllm:
        raise EngineLoadError(f"{python} has no vLLM: {INSTALL_HINT}")
    try:
        known = not survey.version or OLDEST <= Version.parse(survey.version) <= NEWEST
    except ValueError:
        known = False
    if not known:
        raise EngineLoadError(
            f"vLLM {survey.version} of {python} is outside the versions that this release knows ({OLDEST} to {NEWEST}):"
            f" {INSTALL_HINT}"
        )


def _run(python: str, words: list[str], values: Mapping[str, Any], seconds: float | None) -> Survey:
    with tempfile.TemporaryDirectory(prefix="openai_bls-survey-") as folder:
        target, given = Path(folder) / "survey.json", Path(folder) / "arguments.json"
        given.write_bytes(msgspec.json.encode(dict(values)))
        command = [python, str(_SCRIPT), *words, str(target), str(given)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
            )
        except OSError as error:
            raise EngineLoadError(f"{python} cannot be run: {first_line(error)}") from None
        except subprocess.TimeoutExpired:
            raise EngineLoadError(
                f"{python} did not answer about its vLLM within {seconds:.0f} s: try again on a less busy machine"
            ) from None
        if done.returncode or not target.is_file():
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            why = " | ".join(lines[-_TAIL_LINES:]) or f"exit code {done.returncode}"
            raise EngineLoadError(f"{python} is no Python interpreter that can be asked about vLLM: {why}")
        return msgspec.json.decode(target.read_bytes(), type=Survey)
