"""The table of GPUs, and this machine's."""

from __future__ import annotations

import pytest

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.recipe.gpus import GIB, GPUS, Gpu, find_gpu, gpu_of_memory


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_is_found_by_its_own_name(gpu: Gpu) -> None:
    assert find_gpu(gpu.name) == gpu
    assert find_gpu(f"NVIDIA {gpu.name.lower()}") == gpu


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200 NVL", "H200"),
        ("H20-96", "H20-96GB"),
        ("NVIDIA H800 PCIe", "H800"),
        ("RTX 4060 Ti", "RTX 4060 Ti 16GB"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("RTX4090", "RTX 4090"),
        ("RTX4090D", "RTX 4090 D"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GB10", "GB10"),
    ],
)
def test_names_of_nvidia_smi(told: str, name: str) -> None:
    assert find_gpu(told).name == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, r"GB or .*GB") for name in ("A100", "Tesla V100", "NVIDIA H20")),
        *((name, f"GPU {name!r} ") for name in ("", "H100 96GB", "NVIDIA H20-3e", "MI300X", "RTX 4090 X")),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GPU 'NVIDIA H100 80GB HBM3 MIG 1g.10gb' "),
    ],
)
def test_names_of_none_or_two(name: str, says: str) -> None:
    with pytest.raises(BuildError, match=says):
        find_gpu(name)


@pytest.mark.parametrize(
    ("memory", "name", "gpu"),
    [
        ("16GB", None, Gpu("a GPU of 16 GB", 16384, None)),
        ("12", "RTX 3080", Gpu("RTX 3080", 12288, None)),
        ("40 GiB", "A800", Gpu("A800", 40960, (8, 0))),
        ("40G", "A100", Gpu("A100", 40960, (8, 0))),
    ],
)
def test_a_gpu_by_its_memory(memory: str, name: str | None, gpu: Gpu) -> None:
    found = gpu_of_memory(memory, name)
    assert found == gpu
    assert found.has("fp8") == (gpu.compute_capability is None)
    assert (found.refusal, "not known" in (found.warning or "")) == (None, gpu.compute_capability is None)


@pytest.mark.parametrize("memory", ["", "0", "lots", "16MB", "-16GB"])
def test_memory_that_is_none(memory: str) -> None:
    with pytest.raises(BuildError, match=" 16GB"):
        gpu_of_memory(memory)


def test_memory_that_programs_see() -> None:
    """What CUDA reported as the total: the H100 in TensorRT-LLM's documentation, others in public error messages."""
    seen = {"H100": 79.10, "H200": 139.72, "B200": 178.35, "A10G": 22.04, "L4": 22.03, "L40S": 44.39}
    for name, gib in seen.items():
        assert gib - 0.35 < find_gpu(name).memory_bytes / GIB < gib + 0.1, name
