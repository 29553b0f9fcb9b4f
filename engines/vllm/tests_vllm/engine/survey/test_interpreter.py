"""Interpreters with vLLM: where one is found, what it says, and the sentences about others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.survey import interpreter, start_check
from tests_vllm.recipe.vllm_support import make_interpreter


def refusal(python: object) -> str:
    with pytest.raises(EngineLoadError) as caught:
        interpreter.ask(str(python), {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_order_of_places(tmp_path: Path) -> None:
    named, told, own = (make_interpreter(tmp_path / name) for name in ("named", "told", "own"))
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm" / "bin" / "python").symlink_to(own)
    environ = {interpreter.VARIABLE: str(told)}
    folders = [tmp_path / "nowhere", tmp_path]
    assert interpreter.find_interpreter(str(named), environ, folders) == str(named)
    assert interpreter.find_interpreter("", environ, folders) == str(told)
    # A link stays one: an environment is left by following it.
    assert interpreter.find_interpreter("", {}, folders) == str(tmp_path / ".venv-vllm" / "bin" / "python")
    with pytest.raises(EngineLoadError, match="`openai-bls install-engine vllm`"):
        interpreter.find_interpreter("", {}, [])
    with pytest.raises(EngineLoadError, match=f"{interpreter.VARIABLE} nothing "):
        interpreter.find_interpreter("", {interpreter.VARIABLE: "nothing"}, [])


def test_what_is_no_vllm(tmp_path: Path) -> None:
    assert "has no vLLM: run `openai-bls install-engine vllm`" in refusal(sys.executable)
    assert "/bin/false" in refusal("/bin/false")
    assert "cannot be run: " in refusal(tmp_path)
    for version in ("0.23.1", "0.34.0"):
        assert f"vLLM {version} of " in refusal(make_interpreter(tmp_path / version, version))
    broken = make_interpreter(tmp_path / "broken")
    (tmp_path / "broken" / "packages" / "vllm" / "platforms.py").write_text("raise OSError('libcudart is missing')")
    assert refusal(broken) == f"vLLM 0.32.0 of {broken} cannot be imported: libcudart is missing"


def test_an_answer(tmp_path: Path) -> None:
    found = interpreter.ask(str(make_interpreter(tmp_path, gpus=2, memory=5)), {"model": "x", "max_model_len": 9})
    assert (found.version, found.device_type, found.max_model_len, found.refusal) == ("0.32.0", "cuda", 9, "")
    assert found.devices == [interpreter.Device("Small GPU", 5)] * 2
    assert "gpu_memory_utilization" in found.fields
    asked = interpreter.ask(str(tmp_path / "python"), {"quantization": "none"})
    assert asked.refusal == "Unknown quantization method: none."
    assert interpreter.ask(str(tmp_path / "python"), {"tp": 2}).refusal == "its AsyncEngineArgs has no tp"


def test_the_check_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_with(manifest: Manifest, python: str, gpus: list[str]) -> str:
        found = [InstalledGpu(name, "9.0", 1) for name in gpus]
        monkeypatch.setattr(start_check, "visible_gpus", lambda: found)
        return start_check.check_start(manifest, python)

    python = str(make_interpreter(tmp_path))
    manifest = Manifest("vllm", "m", 9, 1, 1, record=VllmRecord("0.32.0", tensor_parallel_size=2).fields())
    assert check_with(manifest, python, []) == f"vLLM 0.32.0 of {python}"
    assert check_with(manifest, python, ["a", "b"]) == f"vLLM 0.32.0 of {python}"
    with pytest.raises(EngineLoadError, match=r"2 GPUs .*--tp-size 2, --pp-size 1.* 1 "):
        check_with(manifest, python, ["a"])
    nodes = Manifest("vllm", "m", 9, 1, 1, record=VllmRecord("0.31.0", 2, extra_engine_args={"nnodes": 2}).fields())
    assert check_with(nodes, python, ["a"]) == f"vLLM 0.32.0 (built with 0.31.0) of {python}"
    with pytest.raises(EngineLoadError, match=r"/nowhere/python .*`openai-bls install"):
        check_with(manifest, "/nowhere/python", [])
    with pytest.raises(EngineLoadError, match=f"{sys.executable} "):
        check_with(manifest, sys.executable, [])
    with pytest.raises(EngineLoadError, match=r"engine\.json"):
        check_with(Manifest("vllm", "m", 9, 1, 1), python, [])
