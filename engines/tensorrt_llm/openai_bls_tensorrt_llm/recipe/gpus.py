"""GPUs: memory that a program has on each, and number formats of its tensor cores.

`memory.total` is what nvidia-smi reports for the GPU, which is already less than the data sheet's round number where
error correction takes its share. A CUDA program sees less still: NVIDIA's own log of an engine on an H100 80GB says
79.10 GiB of nvidia-smi's 79.65, and public listings show 0.4 to 0.7 GiB less on the others. `memory_bytes` takes off
the most of these, so that no estimate is too low by that.
"""

from __future__ import annotations

import re

import msgspec

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.recipe.quantizations import NumberFormat

GIB = 1 << 30
_MIB = 1 << 20
_RESERVED_BYTES = 7 * GIB // 10
"""Bytes between nvidia-smi's memory.total and what CUDA gives a program."""

_SINCE: dict[str, tuple[int, int]] = {"bfloat16": (8, 0), "int8": (7, 5), "fp8": (8, 9), "nvfp4": (10, 0)}
"""The first compute capability whose tensor cores have the format."""


class Gpu(msgspec.Struct, frozen=True):
    """One model of GPU."""

    name: str
    memory_mib: int
    """nvidia-smi's memory.total."""
    compute_capability: tuple[int, int] | None
    """Compute capability, major and minor; None if it is not known: then nothing is said about number formats."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that a CUDA program has of it, while nothing else uses it."""
        return max(0, self.memory_mib * _MIB - _RESERVED_BYTES)

    @property
    def capability(self) -> str:
        """E.g. `9.0`."""
        return ".".join(map(str, self.compute_capability or ("unknown",)))

    def has(self, number_format: NumberFormat) -> bool:
        """True if its tensor cores have this format, or may have it."""
        return self.compute_capability is None or self.compute_capability >= _SINCE[number_format]

    @property
    def refusal(self) -> str | None:
        """Reason why TensorRT-LLM does not run on it; None if it does."""
        if self.compute_capability and self.compute_capability < (7, 5):
            return (
                f"TensorRT-LLM runs on no GPU of compute capability {self.capability} since 0.16, "
                f"which dropped the V100: {self.name} needs another engine, or take a GPU of 8.0 or later"
            )
        return None

    @property
    def warning(self) -> str | None:
        """Warning about running TensorRT-LLM on it; None if there is none."""
        if self.compute_capability is None:
            return f"{self.name}: its compute capability is not known here, and neither are the number formats it has"
        if (7, 5) <= self.compute_capability < (8, 0):
            return f"{self.name}: TensorRT-LLM is neither developed nor tested on GPUs before Ampere (8.0)"
        return None


# nvidia-smi's own numbers, as public listings of it show them.
GPUS = (
    Gpu("V100-16GB", 16384, (7, 0)),
    Gpu("V100-32GB", 32768, (7, 0)),
    Gpu("T4", 15360, (7, 5)),
    Gpu("A10", 23028, (8, 6)),
    Gpu("A10G", 23028, (8, 6)),
    Gpu("A30", 24576, (8, 0)),
    Gpu("A40", 46068, (8, 6)),
    Gpu("A100-40GB", 40960, (8, 0)),
    Gpu("A100-80GB", 81920, (8, 0)),
    Gpu("A800", 81920, (8, 0)),
    Gpu("L4", 23034, (8, 9)),
    Gpu("L20", 46068, (8, 9)),
    Gpu("L40", 46068, (8, 9)),
    Gpu("L40S", 46068, (8, 9)),
    Gpu("RTX A4000", 16376, (8, 6)),
    Gpu("RTX A5000", 24564, (8, 6)),
    Gpu("RTX A6000", 49140, (8, 6)),
    Gpu("RTX 3060", 12288, (8, 6)),
    Gpu("RTX 3090", 24576, (8, 6)),
    Gpu("RTX 3090 Ti", 24564, (8, 6)),
    Gpu("RTX 4000 Ada", 20475, (8, 9)),
    Gpu("RTX 4060 Ti 16GB", 16380, (8, 9)),
    Gpu("RTX 4070", 12282, (8, 9)),
    Gpu("RTX 4080", 16376, (8, 9)),
    Gpu("RTX 4090", 24564, (8, 9)),
    Gpu("RTX 4090 D", 24564, (8, 9)),
    Gpu("RTX 5070", 12227, (12, 0)),
    Gpu("RTX 5080", 16303, (12, 0)),
    Gpu("RTX 5090", 32607, (12, 0)),
    Gpu("RTX 6000 Ada", 49140, (8, 9)),
    Gpu("RTX PRO 6000", 97887, (12, 0)),
    # What CUDA reports of the memory that it shares with its CPU, the least of several drivers': nvidia-smi gives none.
    Gpu("GB10", 122500, (12, 1)),
    Gpu("H20-96GB", 97871, (9, 0)),
    Gpu("H20-141GB", 143771, (9, 0)),
    Gpu("H100", 81559, (9, 0)),
    Gpu("H800", 81559, (9, 0)),
    Gpu("H100-NVL", 95830, (9, 0)),
    Gpu("H200", 143771, (9, 0)),
    Gpu("GH200", 97871, (9, 0)),
    Gpu("B200", 183359, (10, 0)),
    Gpu("GB200", 189471, (10, 0)),
    Gpu("B300", 275040, (10, 3)),
    Gpu("GB300", 284208, (10, 3)),
)

# Words of nvidia-smi's names that tell no two GPUs of the table apart.
_WORDS = {
    "nvidia", "tesla", "geforce", "rtx", "generation", "ac", "pcie", "hbm2", "hbm2e", "hbm3", "hbm3e", "blackwell",
    "workstation", "server", "edition",
}  # fmt: skip
# `RTX4090D` is short for `RTX 4090 D`.
_JOINED = re.compile(r"(?<=rtx)(?=\d)|(?<=\d{4})(?=(?:d|ti)\b)")
_FORM_FACTOR = re.compile(r"sxm\d?")
# `H20-96` is short for `H20-96GB`; numbers of models have more digits.
_SIZE = re.compile(r"(\d+)gb?|(\d{2,3})")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(?:G|GB|GiB)?", re.IGNORECASE)
# Sizes in names that stand for the one variant in the table. A GH200 is named after the memory of its CPU.
_OWN_SIZES = {
    "A800": {"80"},
    "H100": {"80"},
    "H800": {"80"},
    "H100-NVL": {"94"},
    "H200": {"141"},
    "GH200": {"96", "120", "480"},
}


def find_gpu(name: str) -> Gpu:
    """The GPU of this name: as in the table, or as nvidia-smi tells it (`NVIDIA H100 80GB HBM3`).

    Raises:
        BuildError: it is none of the table, or several.
    """
    found = _named(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise BuildError(f"{name!r} may be {' or '.join(gpu.name for gpu in found)}: say which")
    raise BuildError(
        f"no GPU {name!r} is known here: give one of {', '.join(gpu.name for gpu in GPUS)}, or its --gpu-memory too"
    )


def gpu_of_memory(memory: str, name: str | None = None) -> Gpu:
    """A GPU with this much memory, such as `16GB`: of this name, whether or not the table has it.

    Raises:
        BuildError: `memory` is no size.
    """
    size = _MEMORY.fullmatch(memory)
    if size is None or float(size[1]) < 1:
        raise BuildError(f"--gpu-memory {memory} is no size: give gigabytes, such as 16GB")
    # A size of a data sheet, of which nvidia-smi reports a little less or all.
    mib = round(float(size[1]) * 1024)
    known = _named(name) if name else []
    return Gpu(name or f"a GPU of {size[1]} GB", mib, known[0].compute_capability if known else None)


def _named(name: str) -> list[Gpu]:
    wanted = _key(name)
    return [gpu for gpu in GPUS if _matches(wanted, gpu)]


def _key(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a name that matter, and the gigabytes that it mentions."""
    words = re.findall(r"[a-z0-9]+", _JOINED.sub(" ", name.lower()))
    sizes = {size[1] or size[2] for word in words if (size := _SIZE.fullmatch(word))}
    plain = {word for word in words if not _SIZE.fullmatch(word) and not _FORM_FACTOR.fullmatch(word)}
    return frozenset(plain - _WORDS), frozenset(sizes)


def _matches(wanted: tuple[frozenset[str], frozenset[str]], gpu: Gpu) -> bool:
    words, sizes = wanted
    own_words, own_sizes = _key(gpu.name)
    # The H200 NVL has the H200's memory and compute capability; the H100 NVL is a GPU of its own.
    if words not in (own_words, own_words | {"nvl"} if gpu.name == "H200" else own_words):
        return False
    return sizes <= (own_sizes | _OWN_SIZES.get(gpu.name, set()))
