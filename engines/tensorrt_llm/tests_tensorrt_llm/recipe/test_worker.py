"""The worker and what runs it: what it is told, what it tells, and that it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pydantic
import pytest

from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed.build import _set_plugin
from openai_bls_tensorrt_llm.installed.interface import BuildSpec
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm
from openai_bls_tensorrt_llm.recipe.worker.main import REFUSAL, REFUSED, Survey, encode
from openai_bls_tensorrt_llm.recipe.worker.process import LogTail, run_worker
from tests_tensorrt_llm.recipe.build_support import H100, L4, Machine


def spec_in(folder: Path, **changes: object) -> BuildSpec:
    spec = BuildSpec(
        model=folder / "model",
        output=folder / "out",
        workspace=folder,
        max_batch_size=1,
        max_input_len=2,
        max_seq_len=3,
        max_num_tokens=4,
        lora_dirs=(folder / "a", folder / "b"),
        plugins={"gemm_plugin": "auto"},
        quant_algorithm="W4A16_AWQ",
    )
    return msgspec.structs.replace(spec, **changes)


def run(arguments: list[str], folder: Path) -> tuple[int, list[str]]:
    log = folder / "log"
    log.touch()
    lines: list[str] = []
    return run_worker(arguments, log, lines.append, lambda: None), lines


class _PluginConfig(pydantic.BaseModel, validate_assignment=True):
    """Of pydantic, as TensorRT-LLM's is since 1.1."""

    gemm_plugin: Literal["auto", "float16"] = "auto"


class _AssertingPluginConfig(_PluginConfig):
    """With assertions, as before."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name}\nis not one of auto, float16\n")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (_PluginConfig(), "Input should be 'auto' or 'float16'"),
        (_AssertingPluginConfig(), "is not one of auto, float16"),
    ],
)
def test_the_reason_of_a_refused_plugin_option(config: _PluginConfig, said: str) -> None:
    """Pydantic's own text ends in an address."""
    with pytest.raises(EngineLoadError) as caught:
        _set_plugin(TensorRtLlm("1.2.1"), config, "gemm_plugin", "banana")
    assert str(caught.value) == f"plugin option gemm_plugin: 'banana' is refused: {said}"


def arguments_in(folder: Path, text: str = "{}") -> str:
    (folder / "arguments.json").write_text(text)
    return str(folder / "arguments.json")


def test_a_survey(machine: Machine, tmp_path: Path) -> None:
    machine.install_gpus(H100, L4)
    machine.set(FAKE_TENSORRT_LLM_VERSION="1.1.0")
    code, lines = run(["survey", str(tmp_path / "found"), arguments_in(tmp_path)], tmp_path)
    assert code == 0, lines
    found = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Survey)
    gpus = [InstalledGpu("NVIDIA H100 80GB HBM3", "9.0", 81559 << 20), InstalledGpu("NVIDIA L4", "8.9", 23034 << 20)]
    assert (found.version, found.gpus) == ("1.1.0", gpus)
    assert "Qwen2MoeForCausalLM" in found.architectures["tensorrt"]
    # One that only a script of its own converts.
    assert "WhisperEncoder" not in found.architectures["tensorrt"]
    assert "DeepseekV3ForCausalLM" in found.architectures["pytorch"]
    assert found.arguments_refusal == ""


def test_a_refusal(machine: Machine, tmp_path: Path) -> None:
    """What this TensorRT-LLM does not have is no traceback."""
    path = tmp_path / "spec.json"
    path.write_bytes(encode(spec_in(tmp_path, plugins={"no_such_plugin": "auto"}, lora_dirs=())))
    code, lines = run(["build", str(path)], tmp_path)
    assert code == REFUSED
    assert lines[-1] == f"{REFUSAL}TensorRT-LLM 1.2.1 has no plugin option no_such_plugin"
    assert not any("Traceback" in line for line in lines)


def test_variables_of_mpi_stay_here(machine: Machine, tmp_path: Path) -> None:
    """The fake refuses to spawn ranks beneath an mpirun, as MPI does."""
    machine.set(OMPI_COMM_WORLD_RANK="0", PMIX_RANK="0")
    code, lines = run(["survey", str(tmp_path / "found"), arguments_in(tmp_path)], tmp_path)
    assert code == 0, lines


def test_lines_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo 1/2\rtwo 2/2\n\nhalf")
    tail = LogTail(path)
    assert tail.lines() == ["one", "two 1/2", "two 2/2"]
    with path.open("ab") as file:
        file.write("é".encode()[:1])
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write("é a line\nrest".encode()[1:])
    assert tail.lines(rest=True) == ["halfé a line", "rest"]
    tail.close()
