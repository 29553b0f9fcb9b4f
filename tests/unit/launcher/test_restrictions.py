"""Flags that close shared memory and model control."""

from __future__ import annotations

import pytest

from openai_bls.launcher.tritonserver.restrictions import closed_shared_memory, model_control


def test_shared_memory_is_closed_by_a_secret() -> None:
    first, second = closed_shared_memory([]), closed_shared_memory([])
    assert [flag.partition("=")[0] for flag in first] == ["--http-restricted-api", "--grpc-restricted-protocol"]
    assert all("=shared-memory:" in flag for flag in first)
    assert not set(first) & set(second)


def test_the_users_own_restriction_counts() -> None:
    own = ["--http-restricted-api=model-repository,shared-memory:admin=1", "--grpc-restricted-protocol", "health:a=b"]
    assert [flag.partition("=")[0] for flag in closed_shared_memory(own)] == ["--grpc-restricted-protocol"]


def test_model_control_has_a_key_of_its_own() -> None:
    mode, load, *closed = model_control([])
    assert (mode, load) == ("--model-control-mode=explicit", "--load-model=*")
    assert [flag.partition(":")[0] for flag in closed] == [
        "--http-restricted-api=model-repository",
        "--grpc-restricted-protocol=model-repository",
    ]
    assert not set(closed) & set(model_control([]))
    assert len(model_control(["--http-restricted-api", "model-repository:a=b"])) == 3


@pytest.mark.parametrize("own", ["--model-control-mode=none", "--model-control-mode=poll", "--load-model=a"])
def test_the_users_own_model_control_counts(own: str) -> None:
    assert model_control([own]) == []
