"""What is in the images: files and their modes, packages and their lists, size, and no more."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from rfc3987_syntax import syntax_helpers  # type: ignore[import-untyped]

from tests.images.containers import USER, Image

pytestmark = pytest.mark.images

SBOM = "io.openai-bls.sbom"
SERVERS = ("cpu", "runtime", "with_engine")
TARGETS = (*SERVERS, "engine")
WRITTEN = ("OPENAI_BLS_MODEL_REPOSITORY", "HF_HOME", "HOME")
"""Variables with folders that are written to."""


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """The addresses of packages, of which most are in all lists; parsing one takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syntax_helpers, "parse", functools.cache(syntax_helpers.parse))
        yield


def of(request: pytest.FixtureRequest, target: str) -> Image:
    image: Image = request.getfixturevalue(target)
    return image


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(image: Image, interpreter: str = "python3") -> dict[str, str]:
    """Packages of one of the image's environments, and their versions; of two of a name the one that is imported."""
    code = "from importlib.metadata import *; print([(d.metadata['Name'], d.version) for d in distributions()])"
    found = ast.literal_eval(image.python(code, interpreter))
    return {normalised(name): version for name, version in reversed(found)}


def listed(image: Image, label: str) -> dict[str, str]:
    """What the bill of materials lists that lies where the label says; it is valid."""
    text = image.at(image.config["Labels"][label]).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return {normalised(part["name"]): part["version"] for part in json.loads(text)["components"]}


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(
        (Path(place) / name).lstat().st_size for place, _, names in os.walk(folder, followlinks=False) for name in names
    )


@pytest.mark.parametrize("target", TARGETS)
def test_every_user_may_read_and_only_root_may_write(request: pytest.FixtureRequest, target: str) -> None:
    image = of(request, target)
    paths = [image.at("."), *(path for path in image.at(".").rglob("*") if not path.is_symlink())]
    assert image.at("docker/start.py") in paths
    for path in paths:
        found = path.stat()
        needed = 0o555 if path.is_dir() else 0o444
        assert found.st_mode & needed == needed, f"{path} is {stat.filemode(found.st_mode)}"
        assert not found.st_mode & 0o022, f"{path} is {stat.filemode(found.st_mode)}"
        assert (found.st_uid, found.st_gid) == (0, 0)


@pytest.mark.parametrize("variable", WRITTEN)
@pytest.mark.parametrize("target", TARGETS)
def test_group_0_may_write_where_something_is_written(
    request: pytest.FixtureRequest, target: str, variable: str
) -> None:
    """OpenShift's containers run as a user that it chooses, in group 0."""
    image = of(request, target)
    top = image.at(image.environment[variable])
    for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        found = folder.stat()
        assert found.st_mode & 0o070 == 0o070, f"{folder} is {stat.filemode(found.st_mode)}"
        assert found.st_gid == 0
    assert top.stat().st_uid == 1000


@pytest.mark.parametrize("target", ["runtime", "with_engine", "engine"])
def test_the_folder_of_the_socket_is_for_its_user_and_group(request: pytest.FixtureRequest, target: str) -> None:
    """Of all, for any may be the first in a new volume."""
    assert of(request, target).at("/run/openai_bls").stat().st_mode & 0o7777 == 0o2770


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_build_needed_has_left(request: pytest.FixtureRequest, target: str) -> None:
    """Mounts, caches, and what pip was told."""
    image = of(request, target)
    for path in ("/wheels", "/tmp", "/root/.cache/pip", "/checkpoint", "/run/secrets"):
        assert not [found for found in image.at(path).rglob("*") if found.is_file() and found.stat().st_size], path
    settings = image.at("/etc/pip.conf")
    assert not settings.exists() or not settings.stat().st_size
    assert not [text for text in image.config["Env"] if text.startswith("PIP_")]


@pytest.mark.parametrize("target", SERVERS)
def test_the_library_comes_from_its_wheel(request: pytest.FixtureRequest, target: str) -> None:
    image = of(request, target)
    code = "import importlib.metadata as m, openai_bls as o; print(o.__file__, o.__version__, m.version('openai_bls'))"
    where, version, installed = image.python(code).split()
    assert Path(where).parts[-3] in ("site-packages", "dist-packages")
    assert version == installed == image.config["Labels"]["org.opencontainers.image.version"]


def test_the_packages_of_the_base_stay(stand_in: Image, runtime: Image, engine: Image) -> None:
    """The server's library goes beside them, the engine's into an environment by itself."""
    before, after = packages(stand_in), packages(runtime)
    assert before.items() <= after.items()
    assert {"openai-bls", "openai-bls-tensorrt-llm", "openai-bls-vllm", "openai"} <= after.keys() - before.keys()
    assert packages(engine) == before
    assert {"openai-bls", "openai-bls-vllm", "tokenizers"} <= packages(engine, "venv/bin/python3").keys()


@pytest.mark.parametrize("target", ["cpu", "runtime", "engine"])
def test_the_bill_of_materials_names_every_package(request: pytest.FixtureRequest, target: str) -> None:
    image = of(request, target)
    assert listed(image, SBOM) == packages(image)
    if target == "engine":
        assert listed(image, f"{SBOM}-venv") == packages(image, "venv/bin/python3")


@pytest.mark.parametrize("target", TARGETS)
def test_size(request: pytest.FixtureRequest, target: str) -> None:
    """Printed for who builds them."""
    image = of(request, target)
    folders = [path for path in image.root.glob("usr/local/lib/python3*/*-packages/*") if path.is_dir()]
    largest = sorted(((size(path), path.name) for path in folders), reverse=True)[:8]
    parts = ", ".join(f"{name} {count >> 20}" for count, name in largest)
    sys.stdout.write(f"{target}: {size(image.root) >> 20} MiB; of it {parts}\n")
    assert largest[0][1] == "torch"


def test_no_user_of_the_tests_is_one_of_the_images(cpu: Image, stand_in: Image) -> None:
    for image in (cpu, stand_in):
        assert f":{USER}:" not in image.at("/etc/passwd").read_text(encoding="utf-8")
