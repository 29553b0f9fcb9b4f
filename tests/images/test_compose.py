"""compose.yaml as Docker Compose itself reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.images.containers import STORE
from tests.paths import ROOT

pytestmark = pytest.mark.images

PROFILES = {
    "gpu": {"openai_bls"},
    "build": {"build-engine"},
    "vllm": {"triton", "engine"},
    "build-vllm": {"build-vllm"},
    "demo": {"demo"},
    "monitoring": {"prometheus", "grafana"},
}


def read(profiles: Iterable[str], environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What `docker compose config` says."""
    command = [str(STORE / "docker-compose"), *(f"--profile={name}" for name in profiles), "config", "--format", "json"]
    given = {"HOME": str(STORE), **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


def services(*profiles: str, **environment: str) -> dict[str, Any]:
    """The services that would start; it warns of nothing."""
    done = read(profiles, environment, ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_a_profile_starts_its_services_and_none_starts_nothing() -> None:
    assert services() == {}
    for name, names in PROFILES.items():
        assert services(name).keys() == names
    assert services("demo", "monitoring").keys() == PROFILES["demo"] | PROFILES["monitoring"]


def test_variables_reach_the_services() -> None:
    before = services("gpu")["openai_bls"]
    given = {"TRITON_TAG": "26.04", "GPUS": "4", "SHM_SIZE": "5gb", "TLS_DIR": "./tls", "OPENAI_PORT": "9100"}
    after = services("gpu", **given, OPENAI_BLS_API_KEY="a key")["openai_bls"]
    (all_of_them,), (four,) = (found["deploy"]["resources"]["reservations"]["devices"] for found in (before, after))
    assert (all_of_them["count"], four["count"]) == (-1, 4)
    assert (int(before["shm_size"]), int(after["shm_size"])) == (2 << 30, 5 << 30)
    assert after["image"] == "openai_bls:26.04"
    assert after["build"]["args"]["TRITON_TAG"] == "26.04"
    assert [found["ports"][0]["published"] for found in (before, after)] == ["9000", "9100"]
    assert [found["environment"]["OPENAI_BLS_API_KEY"] for found in (before, after)] == [None, "a key"]
    assert [found["volumes"][-1]["type"] for found in (before, after)] == ["volume", "bind"]


def test_what_is_merged_keeps_what_each_service_says() -> None:
    found = services("demo", "vllm")
    assert found["demo"]["healthcheck"] == {**found["triton"]["healthcheck"], "start_period": "5m0s"}
    assert found["demo"]["ports"] == found["triton"]["ports"]
    assert [port.get("host_ip") for port in found["demo"]["ports"]] == [None, *["127.0.0.1"] * 3]
    assert found["triton"]["depends_on"].keys() == {"engine"}


def test_it_refuses_a_field_that_there_is_not(tmp_path: Path) -> None:
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    (tmp_path / "compose.yaml").write_text(text.replace("    shm_size:", "    shm-size:", 1))
    done = read(["demo"], {}, tmp_path)
    assert done.returncode != 0
    assert "shm-size" in done.stderr
