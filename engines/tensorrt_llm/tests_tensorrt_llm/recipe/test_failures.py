"""Failures of a worker: exit codes, and words of TensorRT-LLM, TensorRT, PyTorch, datasets and Python."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.interface import BuildSpec
from openai_bls_tensorrt_llm.recipe.worker.failures import classify, require_disk
from openai_bls_tensorrt_llm.recipe.worker.main import REFUSAL, REFUSED
from openai_bls_tensorrt_llm.recipe.worker.process import KILLED_BASE

SPEC = BuildSpec(
    model=Path("m"),
    output=Path("o"),
    workspace=Path("/"),
    max_batch_size=64,
    max_input_len=1000,
    max_seq_len=2000,
    max_num_tokens=8192,
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
            "a smaller --max-num-tokens (now 8192) or --max-batch-size (now 64)",
        ),
        ("[TRT] [E] Error Code 2: OutOfMemory (Requested size was 2147483648 bytes.)", "--tp-size"),
        ("[TRT] [E] 1: [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)",
         "--tp-size"),
        ("RuntimeError: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, stream): out of memory",
         "--tp-size"),
        ("MemoryError", "host memory ran out"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host memory ran out"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to",
         "host memory ran out"),
        ("OSError: [Errno 28] No space left on device: '/engines/rank0.engine'", "GiB are free at /"),
        ("safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
         "the disk is full"),
        ("NotImplementedError: The given huggingface model architecture FooForCausalLM is not supported in TRT-LLM yet",
         "the model's architecture FooForCausalLM in this flow"),
        ("ValueError: The checkpoint you are trying to load has model type `foo` but Transformers does not recognize"
         " this architecture.", "the model's architecture foo in this flow"),
        ("ModuleNotFoundError: No module named 'modelopt.torch'",
         "the package modelopt.torch is missing: install it into the Python that builds (python3 -m pip install model"),
        ("ImportError: This modeling file requires the following packages that were not found in your environment:"
         " einops. Run `pip install einops`", "the package einops is missing"),
        ("ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory",
         "versions do not go together: ImportError: libnvinfer.so.10"),
        ("ConnectionError: Couldn't reach 'cnn_dailymail' on the Hub (LocalEntryNotFoundError)",
         "give a local directory with --model"),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"
         " exceeded with url: /x", "is out of reach"),
        ("ValueError: something of its own", "the build failed: ValueError: something of its own"),
    ],
)  # fmt: skip
def test_words(line: str, said: str) -> None:
    tail = ["[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0", "Traceback (most recent call last):", line]
    found = classify(1, tail, SPEC)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KILLED_BASE + signal.SIGKILL, "most likely by the kernel for want of host memory"),
        (KILLED_BASE + signal.SIGSEGV, "the build crashed (SIGSEGV)"),
        (KILLED_BASE + signal.SIGTERM, "the build was told to stop"),
        (17, "the build failed: exit code 17"),
        (250, "the build crashed (signal 122)"),
    ],
)
def test_codes(code: int, said: str) -> None:
    assert said in classify(code, ["[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0"], SPEC)


def test_a_refusal_is_told_as_it_is() -> None:
    tail = ["[TensorRT-LLM] TensorRT-LLM version: 1.2.1", f"{REFUSAL}TensorRT-LLM 1.2.1 has no plugin option foo"]
    assert classify(REFUSED, tail, SPEC) == "TensorRT-LLM 1.2.1 has no plugin option foo"


def test_what_was_survived_is_not_the_reason() -> None:
    """TensorRT passes over ways that need more memory than there is, and says so."""
    tail = [
        "[TRT] [W] Requested amount of GPU memory (57662592 bytes) could not be allocated. Error Code 2: OutOfMemory",
        "[TRT] [I] Skipping tactic 0x1 due to CUDA out of memory",
        "Traceback (most recent call last):",
        "OSError: [Errno 28] No space left on device",
    ]
    assert "the disk is full" in classify(1, tail, SPEC)
    assert classify(1, tail[:2], SPEC) == "the build failed: exit code 1"


def test_room_for_a_build(tmp_path: Path) -> None:
    require_disk(tmp_path, 1)
    with pytest.raises(BuildError, match=r" 1048576\.0 GiB "):
        require_disk(tmp_path, 1 << 50)
