"""The KServe manifests are what KServe takes, and fit each other."""

from __future__ import annotations

import copy

import pytest

from tests.unit.deploy.support import KSERVE, KUBERNETES_VERSIONS, complaints, load_manifests

[RUNTIME] = load_manifests(KSERVE / "servingruntime.yaml")
[SERVICE] = load_manifests(KSERVE / "inferenceservice.yaml")


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_what_kserve_takes(version: str) -> None:
    assert complaints(RUNTIME, version) == []
    assert complaints({**RUNTIME, "kind": "ClusterServingRuntime"}, version) == []
    assert complaints(SERVICE, version) == []


def test_what_kserve_does_not_know_is_found() -> None:
    runtime, service = copy.deepcopy(RUNTIME), copy.deepcopy(SERVICE)
    runtime["spec"]["containers"][0]["port"] = []
    service["spec"]["predictor"]["model"]["storageURI"] = "pvc://x"
    assert any("'port'" in complaint for complaint in complaints(runtime, "1.37"))
    assert any("storageURI" in complaint for complaint in complaints(service, "1.37"))


def test_the_runtime_serves_what_kserve_mounts() -> None:
    model = SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] in {entry["name"] for entry in RUNTIME["spec"]["supportedModelFormats"]}
    [container] = RUNTIME["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["args"][container["args"].index("--model-repository") + 1] == "/mnt/models"
    assert [port["containerPort"] for port in container["ports"]] == [9000]
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == "9000"
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in RUNTIME["spec"]["volumes"]}
    exit_timeout = int(container["args"][container["args"].index("--exit-timeout") + 1])
    assert SERVICE["spec"]["predictor"]["terminationGracePeriodSeconds"] > exit_timeout + 20
