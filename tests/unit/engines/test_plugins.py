"""Plug-ins of engines: how they are found, a toy in a distribution of its own, and those that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls.engines import registry
from openai_bls.engines.registry import create_engine
from openai_bls.transport.engine_process.process import BOOTSTRAP
from tests.engine_contract.support import Recorder

TOY = """
from typing import Annotated
import msgspec
from openai_bls.engines.plugin import EnginePlugin, Lazy

class Options(msgspec.Struct):
    toy_size: Annotated[int, msgspec.Meta(ge=1)] = 1

def load(version_dir, manifest, settings, on_step, options):
    return (manifest.model_name, options.toy_size)

PLUGIN = EnginePlugin(
    name="toy", title="Toy", load=Lazy("openai_bls_toy:load"), options=Lazy("openai_bls_toy:Options")
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, which may hold distributions; what was found before is forgotten."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    registry._entries.cache_clear()
    registry.plugin.cache_clear()
    yield tmp_path / "site"
    registry._entries.cache_clear()
    registry.plugin.cache_clear()
    sys.modules.pop("openai_bls_toy", None)


def distribution(site: Path, name: str, entry: str, code: str = "") -> None:
    folder = site / f"{name}-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[openai_bls.engines]\n{entry}\n")
    if code:
        (site / "openai_bls_toy").mkdir()
        (site / "openai_bls_toy" / "__init__.py").write_text(code)


def test_a_distribution_that_is_installed_brings_an_engine(installed: Path, tmp_path: Path) -> None:
    distribution(installed, "openai_bls_toy", "toy = openai_bls_toy:PLUGIN", TOY)
    assert "toy" in registry.names()
    write_manifest(tmp_path, Manifest(engine="toy", model_name="m", max_model_len=9, max_batch_size=1, created=1))
    made: object = create_engine(tmp_path, Recorder(), {"toy_size": "3"})
    assert made == ("m", 3)
    with pytest.raises(EngineLoadError, match="toy_size is '0'"):
        create_engine(tmp_path, Recorder(), {"toy_size": "0"})
    with pytest.raises(EngineLoadError, match=r"OPENAI_BLS_ENGINE_DEVICE .* toy"):
        create_engine(tmp_path, Recorder(), {"device": "cpu"})


@pytest.mark.parametrize(
    ("entry", "code", "said"),
    [
        ("toy = openai_bls_nowhere:PLUGIN", "", "'openai_bls_nowhere'"),
        ("toy = openai_bls_toy:MISSING", TOY, "MISSING"),
        ("toy = openai_bls_toy:load", TOY, "engine toy"),
        ("other = openai_bls_toy:PLUGIN", TOY, "engine other"),
        ("null = openai_bls_toy:PLUGIN", TOY, "engine null .*distributions"),
    ],
)
def test_what_is_no_plug_in(installed: Path, entry: str, code: str, said: str) -> None:
    distribution(installed, "broken", entry, code)
    with pytest.raises(EngineLoadError, match=said):
        registry.plugin(entry.partition(" ")[0])


def test_two_distributions_of_one_engine(installed: Path) -> None:
    distribution(installed, "one", "toy = openai_bls_toy:PLUGIN", TOY)
    distribution(installed, "another", "toy = openai_bls_other:PLUGIN")
    with pytest.raises(EngineLoadError, match=r"engine toy .* another .* and one "):
        registry.names()


def test_the_process_of_another_interpreter_is_told_of_the_plug_ins(installed: Path, tmp_path: Path) -> None:
    """It has neither the distributions nor their folders on its path."""
    distribution(installed, "openai_bls_toy", "toy = openai_bls_toy:PLUGIN", TOY)
    write_manifest(tmp_path, Manifest(engine="toy", model_name="m", max_model_len=9, max_batch_size=1, created=1))
    script = tmp_path / "script.py"
    script.write_text(
        f"import runpy; runpy.run_path({str(BOOTSTRAP)!r})\n"
        "from pathlib import Path\nfrom openai_bls.engines.registry import create_engine, names\n"
        f"print(names(), create_engine(Path({str(tmp_path)!r}), lambda _: None))\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    toy = json.loads(registry.passed_on())["toy"]
    # What that interpreter has installed is of no account.
    passed = environ | {registry.VARIABLE: json.dumps({"toy": toy})}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=passed)
    assert (done.stdout, done.returncode) == ("('toy', 'null') ('m', 1)\n", 0), done.stderr
