"""Warnings about published vulnerabilities of a server, and the flags that close shared memory."""

from __future__ import annotations

import pytest

from openai_bls.launcher.tritonserver.release import closed_shared_memory, exposure_warning, model_control


@pytest.mark.parametrize(
    ("release", "host", "warned"),
    [
        *(("24.10", host, False) for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost")),
        *(("24.10", host, True) for host in ("0.0.0.0", "::", "10.1.2.3", "gpu-1.example")),
        *((release, "0.0.0.0", True) for release in ("25.07", "26.06", "unknown", "")),
        *((release, "0.0.0.0", False) for release in ("26.07", "26.10", "27.01")),
    ],
)
def test_open_ports_of_an_old_server(release: str, host: str, warned: bool) -> None:
    warning = exposure_warning(release, host)
    assert (warning is not None) == warned
    assert not warned or (host in str(warning) and "26.07" in str(warning))


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
