"""Rendering the chart with Helm's own engine, and Kubernetes' schemas to hold the result against."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import chart as helm
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "openai-bls"
KSERVE = ROOT / "deploy" / "kserve"
EXAMPLES = sorted((CHART / "examples").glob("values-*.yaml"))
RELEASE = "demo"

# The oldest that Chart.yaml allows and the newest that there are schemas for.
KUBERNETES_VERSIONS = ("1.27", "1.37")

# The first with sidecars of its own.
_FIRST_WITH_SIDECARS = "1.29"

# Of the package kubernetes-validate, whose own function reads them anew for every manifest.
_BUILT_IN = Path(str(files("kubernetes_validate"))) / "kubernetes-json-schema"
_CUSTOM = Path(__file__).parent / "schemas"

Manifest = dict[str, Any]
Values = dict[str, Any]

BUILD: Values = {"engine": {"build": {"model": "org/model"}}}
"""The least that the chart must be given."""

EVERYTHING: Values = {
    "kind": "Deployment",
    "replicas": 2,
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "engine": {
        "build": {
            "mode": "job",
            "model": "org/model",
            "options": {"max-batch-size": 8, "trust-remote-code": True, "force": False},
            "gpus": 2,
            "resources": {"requests": {"memory": "1Gi"}},
        }
    },
    "storage": {"storageClassName": "", "annotations": {"a": "b"}},
    "serve": {"tritonArgs": ["--log-verbose=1"]},
    "settings": {"max_request_bytes": 33554432, "trust_chat_template": False, "keep_alive_interval_s": 2.5},
    "engineOptions": {"max_batch_size": 16},
    "apiKey": {"existingSecret": "key"},
    "apiKeysFile": {"existingSecret": "named-keys", "key": "clients.txt"},
    "tls": {"existingSecret": "certificate", "clientCaSecret": "clients"},
    "huggingFace": {"existingSecret": "hub", "endpoint": "https://hub.example.com"},
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "autoscaling": {"enabled": True, "runningSequences": 64, "kvCacheUsagePercent": 85},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafanaDashboard": {"enabled": True, "annotations": {"grafana_folder": "LLM"}},
    "podDisruptionBudget": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
    },
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "hosts": [{"host": "llm.example.com"}],
        "tls": [{"hosts": ["llm.example.com"], "secretName": "tls"}],
    },
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["llm.example.com"]},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "x"},
    "nodeSelector": {"a": "b"},
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
}
"""All that can be switched on for one node."""


GROUP: Values = {
    **{key: EVERYTHING[key] for key in ("engine", "autoscaling", "podMonitor", "networkPolicy", "apiKey", "settings")},
    "kind": "LeaderWorkerSet",
    "gpus": 8,
    "multinode": {"size": 3, "sshSecret": "keys"},
}
"""Several nodes, whose engine a Job builds."""

CPP_GROUP: Values = {**GROUP, "multinode": {**GROUP["multinode"], "backend": "cpp"}}
"""The same with Triton's C++ backend."""

ENGINE_CONTAINER: Values = {
    "process": "sidecar",
    "sidecar": {
        "image": {"tag": "1"},
        "args": ["--option", "vllm_client=async_llm"],
        "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
        "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}},
    },
}
SIDECAR: Values = {
    **EVERYTHING,
    "engine": {**EVERYTHING["engine"], **ENGINE_CONTAINER},
    "settings": {**EVERYTHING["settings"], "enable_kv_cache_reuse": True},
    "engineOptions": {"vllm_client": "async_llm"},
}
"""The engine in a container of its own."""

HEADLESS: Values = {
    **GROUP,
    "engine": {**EVERYTHING["engine"], **ENGINE_CONTAINER},
    "multinode": {"size": 3, "masterPort": 31000, "workerTimeoutSeconds": 60},
}
"""Several nodes with vLLM, whose engine a Job builds."""

CASES: dict[str, Values] = {
    **{path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES},
    "least": BUILD,
    "everything": EVERYTHING,
    "group": GROUP,
    "cpp-group": CPP_GROUP,
    "sidecar": SIDECAR,
    "headless": HEADLESS,
}
"""Values that between them use every template and every branch."""
all_cases = pytest.mark.parametrize("values", CASES.values(), ids=CASES)


@cache
def chart() -> helm.Chart:
    """The chart, loaded by Helm."""
    return helm.Chart.load(CHART)


def render(values: Values, name: str = RELEASE) -> list[Manifest]:
    """The manifests that `helm template` gives; of the same values the same ones, which no test may change.

    Raises:
        helm_python.errors.HelmError: the values are refused, or a template fails.
    """
    return _render(json.dumps(values), name)


@cache
def _render(values: str, name: str) -> list[Manifest]:
    given = json.loads(values)
    chart().validate_schema(chart().merge_values(given))
    rendered = chart().render(given, name=name, namespace="default")
    return [
        document
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml")
        for document in yaml.load_all(text, Loader=_Strict)
        if document is not None
    ]


class _Strict(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML readers would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See PyYAML."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice in one mapping{node.start_mark}: {keys}"
        return super().construct_mapping(node, deep)


def load_manifests(path: Path) -> list[Manifest]:
    """The documents of a file."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=_Strict))


def versions(values: Values) -> tuple[str, ...]:
    """The versions of Kubernetes for which these values are."""
    if values.get("engine", {}).get("process") == "sidecar":
        return (_FIRST_WITH_SIDECARS, KUBERNETES_VERSIONS[-1])
    return KUBERNETES_VERSIONS


def engine_container(template: Manifest) -> Manifest:
    """The engine's container of a server's pod."""
    found: list[Manifest] = [each for each in template["spec"]["initContainers"] if each["name"] == "engine"]
    [container] = found
    return container


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Pod templates by their component: server, worker, build."""
    found = {}
    for manifest in manifests:
        spec = manifest.get("spec", {})
        group = spec.get("leaderWorkerTemplate", {})
        for template in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
            if template is not None:
                found[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template
    return found


def containers(template: Manifest) -> list[Manifest]:
    """All containers of a pod template, those that run first included."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container: Manifest) -> dict[str, Any]:
    """Name → value of a container's variables; None for those that come from elsewhere."""
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@cache
def _registry(version: str) -> Registry[Any]:
    definitions = json.loads((_BUILT_IN / f"v{version}.0-local-strict" / "_definitions.json").read_text("utf-8"))
    registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
    return registry


@cache
def _validator(kind: str, api_version: str, version: str) -> Draft202012Validator:
    group, _, release = api_version.rpartition("/")
    custom = _CUSTOM / f"{kind.lower().removeprefix('cluster')}.json"
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], release) if part)
    path = custom if custom.is_file() else _BUILT_IN / f"v{version}.0-local-strict" / f"{name}.json"
    return Draft202012Validator(json.loads(path.read_text(encoding="utf-8")), registry=_registry(version))


def complaints(manifest: Manifest, version: str) -> list[str]:
    """What Kubernetes of this version, or the custom resource's own definition, has against a manifest."""
    validator = _validator(manifest["kind"], manifest["apiVersion"], version)
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(manifest)]
