"""A watched directory, looked at by hand."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from openai_bls.core.engine import LoraError
from openai_bls.triton_models.tensorrt_llm import lora_directory
from openai_bls.triton_models.tensorrt_llm.lora_directory import LoraDirectory, watch


class Engine:
    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.called = threading.Event()

    def update(self, name: str, path: str) -> None:
        self.calls.append((name, path))
        self.called.set()
        if name == "bad":
            raise LoraError("it is bad")
        if path:
            self.loaded[name] = path
        else:
            del self.loaded[name]


def put(directory: Path, name: str, text: str = "{}") -> Path:
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / "adapter_config.json").write_text(text)
    return directory / name


def test_adapters_come_and_go_with_their_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, root = Engine(), tmp_path / "adapters"
    directory = LoraDirectory(root, engine.update)
    directory.look()
    put(root, "poet")
    put(root, "bad")
    (root / "empty").mkdir()
    directory.look()
    assert engine.calls == [], "it may be in the middle of a copy"
    directory.look()
    assert engine.loaded == {"poet": str(root / "poet")}
    assert "the adapter bad is not loaded: it is bad" in caplog.text
    directory.look()
    assert len(engine.calls) == 2, "once for each"
    # A folder that changes is another adapter.
    put(root, "poet", '{"r": 8}')
    directory.look()
    assert engine.loaded == {}
    directory.look()
    assert list(engine.loaded) == ["poet"]
    shutil.rmtree(root / "poet")
    shutil.rmtree(root / "bad")
    directory.look()
    assert engine.loaded == {}
    assert [call for call in engine.calls if call[0] == "bad"] == [("bad", str(root / "bad"))]


def test_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_directory, "INTERVAL_S", 0.001)
    engine = Engine()
    put(tmp_path, "poet")
    watched = watch(str(tmp_path), engine.update)
    assert engine.called.wait(60)
    watched.close()
    assert not watched.thread.is_alive()
    idle = watch("", engine.update)
    idle.close()
    assert idle.thread.ident is None
