"""Failures of a worker: exit codes, and words of TensorRT-LLM, TensorRT, PyTorch, datasets and Python."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from openai_bls.builder.tensorrt_llm.worker.failures import Kind, classify, require_disk
from openai_bls.builder.tensorrt_llm.worker.main import REFUSAL, REFUSED
from openai_bls.builder.tensorrt_llm.worker.process import KILLED_BASE
from openai_bls.core.manifest import BuildError
from openai_bls.engines.tensorrt_llm.installed.interface import BuildSpec

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
    ("line", "kind", "said"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
            "GPU memory",
            "a smaller --max-num-tokens (now 8192) or --max-batch-size (now 64)",
        ),
        ("[TRT] [E] Error Code 2: OutOfMemory (Requested size was 2147483648 bytes.)", "GPU memory", "--tp-size"),
        ("[TRT] [E] 1: [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)", "GPU memory",
         "--tp-size"),
        ("RuntimeError: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, stream): out of memory",
         "GPU memory", "--tp-size"),
        ("MemoryError", "host memory", "host memory ran out"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host memory", "host memory ran out"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to",
         "host memory", "host memory ran out"),
        ("OSError: [Errno 28] No space left on device: '/engines/rank0.engine'", "disk", "GiB are free at /"),
        ("safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
         "disk", "the disk is full"),
        ("NotImplementedError: The given huggingface model architecture FooForCausalLM is not supported in TRT-LLM yet",
         "architecture", "the model's architecture FooForCausalLM in this flow"),
        ("ValueError: The checkpoint you are trying to load has model type `foo` but Transformers does not recognize"
         " this architecture.", "architecture", "the model's architecture foo in this flow"),
        ("ModuleNotFoundError: No module named 'modelopt.torch'", "package",
         "the package modelopt.torch is missing: install it into the Python that builds (python3 -m pip install model"),
        ("ImportError: This modeling file requires the following packages that were not found in your environment:"
         " einops. Run `pip install einops`", "package", "the package einops is missing"),
        ("ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory", "version",
         "versions do not go together: ImportError: libnvinfer.so.10"),
        ("ConnectionError: Couldn't reach 'cnn_dailymail' on the Hub (LocalEntryNotFoundError)", "network",
         "give a local directory with --model"),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"
         " exceeded with url: /x", "network", "is out of reach"),
        ("ValueError: something of its own", "other", "the build failed: ValueError: something of its own"),
    ],
)  # fmt: skip
def test_words(line: str, kind: Kind, said: str) -> None:
    tail = ["[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0", "Traceback (most recent call last):", line]
    found = classify(1, tail, SPEC)
    assert (found.kind, said in found.sentence) == (kind, True), found
    assert "\n" not in found.sentence


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KILLED_BASE + signal.SIGKILL, "host memory", "most likely by the kernel for want of host memory"),
        (KILLED_BASE + signal.SIGSEGV, "other", "the build crashed (SIGSEGV)"),
        (KILLED_BASE + signal.SIGTERM, "interrupted", "the build was told to stop"),
        (17, "other", "the build failed: exit code 17"),
        (250, "other", "the build crashed (signal 122)"),
    ],
)
def test_codes(code: int, kind: Kind, said: str) -> None:
    found = classify(code, ["[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0"], SPEC)
    assert found.kind == kind
    assert said in found.sentence


def test_a_refusal_is_told_as_it_is() -> None:
    tail = ["[TensorRT-LLM] TensorRT-LLM version: 1.2.1", f"{REFUSAL}TensorRT-LLM 1.2.1 has no plugin option foo"]
    found = classify(REFUSED, tail, SPEC)
    assert (found.kind, found.sentence) == ("refused", "TensorRT-LLM 1.2.1 has no plugin option foo")


def test_what_was_survived_is_not_the_reason() -> None:
    """TensorRT passes over ways that need more memory than there is, and says so."""
    tail = [
        "[TRT] [W] Requested amount of GPU memory (57662592 bytes) could not be allocated. Error Code 2: OutOfMemory",
        "[TRT] [I] Skipping tactic 0x1 due to CUDA out of memory",
        "Traceback (most recent call last):",
        "OSError: [Errno 28] No space left on device",
    ]
    assert classify(1, tail, SPEC).kind == "disk"
    assert classify(1, tail[:2], SPEC).kind == "other"


def test_room_for_a_build(tmp_path: Path) -> None:
    require_disk(tmp_path, 1)
    with pytest.raises(BuildError, match=r"needs 1048576\.0 GiB at .* are free: free some, or name another place"):
        require_disk(tmp_path, 1 << 50)
