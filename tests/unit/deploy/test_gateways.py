"""The chart behind a gateway with an endpoint picker."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from helm_python.errors import HelmError

from tests.unit.deploy.support import (
    BUILD,
    CASES,
    CPP_GROUP,
    GROUP,
    HEADLESS,
    ROOT,
    Values,
    chart,
    complaints,
    of_kind,
    pods,
    render,
)

POOL = CASES["values-inference-pool"]
LLM_D = CASES["values-llm-d"]
ENGINE_TYPE = "llm-d.ai/engine-type"


def backends(values: Values, name: str = "demo") -> list[Any]:
    [route] = of_kind(render(values, name), "HTTPRoute")
    [rule] = route["spec"]["rules"]
    backend_refs: list[Any] = rule["backendRefs"]
    return backend_refs


def test_the_route_leads_to_the_pool_of_the_servers_pods() -> None:
    manifests = render(POOL)
    [pool] = of_kind(manifests, "InferencePool")
    [reference] = backends(POOL)
    assert reference == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "demo-openai-bls"}
    assert pool["apiVersion"] == f"{reference['group']}/v1"
    assert pool["metadata"]["name"] == reference["name"]
    server = pods(manifests)["server"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
    [container] = [each for each in server["spec"]["containers"] if each["name"] == "server"]
    [port] = [port["containerPort"] for port in container["ports"] if port["name"] == "openai"]
    assert pool["spec"]["targetPorts"] == [{"number": port}]
    picker = pool["spec"]["endpointPickerRef"]
    assert picker == {"kind": "Service", "name": "qwen-epp", "port": {"number": 9002}, "failureMode": "FailOpen"}


def test_a_pool_takes_no_workers() -> None:
    values = {**HEADLESS, "inferencePool": POOL["inferencePool"]}
    manifests = render(values)
    [pool] = of_kind(manifests, "InferencePool")
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    assert [name for name, pod in pods(manifests).items() if wanted <= pod["metadata"]["labels"].items()] == ["server"]
    assert ENGINE_TYPE not in pods(manifests)["worker"]["metadata"]["labels"]


def test_what_the_api_does_not_know_is_found() -> None:
    [pool] = copy.deepcopy(of_kind(render(POOL), "InferencePool"))
    pool["spec"]["extensionRef"] = pool["spec"].pop("endpointPickerRef")
    found = complaints(pool, "1.37")
    assert any("'extensionRef'" in each for each in found)
    assert any("'endpointPickerRef'" in each for each in found)


def test_it_is_off_by_default() -> None:
    assert not of_kind(render(BUILD), "InferencePool")
    assert not of_kind(render(BUILD), "HTTPRoute")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, "triton-tensorrt-llm"),
        ("nvidia", "triton-tensorrt-llm"),
        ("vllm", "vllm"),
        ("both", "vllm"),
        ("none", None),
    ],
)
def test_the_label_says_which_metrics_there_are(names: str | None, expected: str | None) -> None:
    settings = {} if names is None else {"gateway_metrics": names}
    labels = pods(render({**BUILD, "settings": settings}))["server"]["metadata"]["labels"]
    assert labels.get(ENGINE_TYPE) == expected


def test_a_backend_that_shows_its_metrics_elsewhere_has_no_label() -> None:
    assert ENGINE_TYPE not in pods(render(CPP_GROUP))["server"]["metadata"]["labels"]
    assert ENGINE_TYPE in pods(render(GROUP))["server"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inferencePool": {"enabled": True}}, "endpointPicker.name"),
        ({"inferencePool": {"enabled": True, "existing": "x"}, "httpRoute": {"enabled": False}}, "httpRoute.enabled"),
        ({"settings": {"gateway_metrics": "none"}}, "gateway_metrics"),
        ({"tls": {"existingSecret": "certificate"}}, "tls.existingSecret"),
        ({"inferencePool": {"enabled": True, "endpointPicker": {"name": "x", "failureMode": "Open"}}}, "failureMode"),
    ],
)
def test_what_cannot_be_is_refused(change: Values, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render({**POOL, **change})


def test_a_group_of_the_cpp_backend_is_refused() -> None:
    with pytest.raises(HelmError, match=r"no multinode\.backend cpp"):
        render({**CPP_GROUP, "inferencePool": POOL["inferencePool"]})


def test_llm_ds_values_fit_the_charts() -> None:
    router = yaml.safe_load((ROOT / "deploy" / "llm-d" / "router.yaml").read_text(encoding="utf-8"))["router"]
    manifests = render(LLM_D, "qwen")
    assert not of_kind(manifests, "InferencePool")
    assert [reference["name"] for reference in backends(LLM_D, "qwen")] == ["qwen-router"]
    labels = pods(manifests)["server"]["metadata"]["labels"]
    servers = router["modelServers"]
    assert servers["matchLabels"].items() <= labels.items()
    assert servers["type"] == labels[ENGINE_TYPE]
    [service] = [each for each in of_kind(manifests, "Service") if each["spec"].get("clusterIP") != "None"]
    assert servers["targetPorts"] == [{"number": p["port"]} for p in service["spec"]["ports"] if p["name"] == "openai"]


@pytest.mark.parametrize("values", [POOL, LLM_D], ids=["pool", "llm-d"])
def test_streams_end_before_the_pod_is_killed(values: Values) -> None:
    spec = pods(render(values))["server"]["spec"]
    [container] = [each for each in spec["containers"] if each["name"] == "server"]
    _, wait = container["lifecycle"]["preStop"]["exec"]["command"]
    exit_timeout = container["args"][container["args"].index("--exit-timeout") + 1]
    assert int(wait) > 0
    assert spec["terminationGracePeriodSeconds"] > int(wait) + int(exit_timeout)
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_kedas_example_asks_for_what_the_chart_makes() -> None:
    scaled = yaml.safe_load((ROOT / "deploy" / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))["spec"]
    [workload] = of_kind(render(BUILD, "qwen"), scaled["scaleTargetRef"]["kind"])
    name = workload["metadata"]["name"]
    assert scaled["scaleTargetRef"]["name"] == name
    [trigger] = scaled["triggers"]
    assert f'openai_bls_requests_waiting{{namespace="default", pod=~"{name}-.*"}}' in trigger["metadata"]["query"]
    assert trigger["metadata"]["threshold"] == str(chart().values["autoscaling"]["waitingRequests"])
