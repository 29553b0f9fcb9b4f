"""The chart renders, and what it renders is what Kubernetes takes."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from helm_python import chart as helm
from helm_python.errors import HelmError

from openai_bls.launcher.tritonserver import process
from tests.unit.deploy.support import (
    BUILD,
    CASES,
    CHART,
    EVERYTHING,
    GROUP,
    HEADLESS,
    SIDECAR,
    Values,
    all_cases,
    chart,
    complaints,
    containers,
    engine_container,
    environment,
    of_kind,
    pods,
    render,
    versions,
)

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def merged(*parts: Values) -> Values:
    """Later values over earlier ones, as Helm puts files together."""
    result: Values = {}
    for part in parts:
        for key, value in copy.deepcopy(part).items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def repository_of(values: Values) -> str:
    arguments: list[str] = pods(render(values))["server"]["spec"]["containers"][0]["args"]
    return arguments[arguments.index("--model-repository") + 1]


@all_cases
def test_manifests_are_what_helm_and_kubernetes_take(values: Values) -> None:
    report = helm.lint(CHART, values, strict=True)
    # An icon is recommended, which is information.
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert not report["errors"]
    for version in versions(values):
        assert [complaint for manifest in render(values) for complaint in complaints(manifest, version)] == []


def test_every_template_is_used() -> None:
    """So that no manifest goes without being looked at."""
    rendered = {manifest["kind"] for values in CASES.values() for manifest in render(values)}
    templates = "\n".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.yaml"))
    assert set(re.findall(r"^kind: (\w+)$", templates, re.MULTILINE)) == rendered


def test_what_kubernetes_does_not_know_is_found() -> None:
    """The schemas are strict, in pods within custom resources too."""
    for case, path in ((SIDECAR, ("spec", "template")), (GROUP, ("spec", "leaderWorkerTemplate", "workerTemplate"))):
        workload = copy.deepcopy(of_kind(render(case), case["kind"])[0])
        part = workload
        for key in path:
            part = part[key]
        part["spec"]["containers"][0]["livenesProbe"] = {}
        assert any("livenesProbe" in complaint for complaint in complaints(workload, "1.37"))


@all_cases
def test_names_and_labels(values: Values) -> None:
    """What the schemas leave to the API server."""
    manifests = render(values, name="a-release-with-a-name-as-long-as-helm-allows-it-53xx")
    for manifest in manifests:
        assert NAME.fullmatch(manifest["metadata"]["name"])
    metadata = [manifest["metadata"] for manifest in manifests]
    metadata += [template["metadata"] for template in pods(manifests).values()]
    for entry in metadata:
        assert all(isinstance(value, str) and LABEL.fullmatch(value) for value in entry["labels"].values())
        assert all(isinstance(value, str) for value in entry.get("annotations", {}).values())
    assert len({(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}) == len(manifests)


@all_cases
def test_what_a_container_names_is_in_its_pod(values: Values) -> None:
    manifests = render(values)
    claims = {
        claim["metadata"]["name"]
        for workload in of_kind(manifests, "StatefulSet")
        for claim in workload["spec"].get("volumeClaimTemplates", ())
    }
    scripts = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    accounts = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "ServiceAccount")}
    for template in pods(manifests).values():
        spec = template["spec"]
        assert spec["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        data = scripts[volumes["scripts"]["configMap"]["name"]]
        for container in containers(template):
            names = [entry["name"] for entry in container.get("env", ())]
            assert len(names) == len(set(names)), "a variable is there twice"
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes) | claims
            assert set(re.findall(r"/etc/openai_bls/scripts/([\w.-]+)", json.dumps(container))) <= set(data)
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                for action in ("httpGet", "tcpSocket"):
                    if action in container.get(probe, {}):
                        assert container[probe][action]["port"] in ports


@all_cases
def test_what_selects_finds_the_servers_alone(values: Values) -> None:
    manifests = render(values)
    templates = pods(manifests)
    labels = {component: template["metadata"]["labels"].items() for component, template in templates.items()}
    ports = {port["name"] for port in templates["server"]["spec"]["containers"][0]["ports"]}
    selecting = {"Service", "StatefulSet", "Deployment", "PodMonitor", "PodDisruptionBudget"}
    for manifest in manifests:
        if manifest["kind"] in selecting:
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert [component for component, found in labels.items() if wanted <= found] == ["server"]
    for service in of_kind(manifests, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for monitor in of_kind(manifests, "PodMonitor"):
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == {"openai", "metrics"}
        assert {"openai", "metrics"} <= ports
        # Both ports have these, and only one of them is to count.
        dropping = {"sourceLabels": ["__name__"], "regex": "openai_bls_.*", "action": "drop"}
        found = {e["port"]: e.get("metricRelabelings", []) for e in monitor["spec"]["podMetricsEndpoints"]}
        assert found == {"openai": [], "metrics": [dropping]}


@all_cases
def test_workloads_and_what_goes_with_them(values: Values) -> None:
    manifests = render(values)
    services = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "Service")}
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        [scaled] = [m for m in of_kind(manifests, target["kind"]) if m["metadata"]["name"] == target["name"]]
        assert scaled["apiVersion"] == target["apiVersion"]
        assert "replicas" not in scaled["spec"]
    for workload in of_kind(manifests, "StatefulSet"):
        assert workload["spec"]["serviceName"] in services
    for workload in of_kind(manifests, "LeaderWorkerSet"):
        # Its controller makes a service of its name, which must not be ours.
        assert workload["metadata"]["name"] not in services


@all_cases
def test_no_container_has_more_rights_than_it_needs(values: Values) -> None:
    for template in pods(render(values)).values():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in containers(template):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"]["drop"] == ["ALL"]
            # The root file system cannot be written to: these can.
            mounts = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert container["name"] == "wait-for-engine" or {"/tmp", "/dev/shm"} <= mounts


@all_cases
def test_a_pod_is_given_the_time_that_the_server_takes_to_stop(values: Values) -> None:
    # The launcher's guardian kills that long after the exit timeout, and is itself given as much more.
    templates = pods(render(values))
    arguments = templates["server"]["spec"]["containers"][0]["args"]
    exit_timeout = int(arguments[arguments.index("--exit-timeout") + 1])
    needed = exit_timeout + int(chart().merge_values(values)["serve"]["preStopSeconds"]) + 2 * process._GRACE_SECONDS
    for component in {"server", "worker"} & set(templates):
        assert templates[component]["spec"]["terminationGracePeriodSeconds"] > needed


def test_gpus() -> None:
    server = pods(render(merged(BUILD, {"gpus": 2, "gpuResource": "example.com/gpu"})))["server"]
    for container in containers(server):
        for part in ("requests", "limits"):
            assert container["resources"][part]["example.com/gpu"] == 2
    without = pods(render(merged(BUILD, {"gpus": 0})))["server"]
    assert "gpu" not in json.dumps([container["resources"] for container in containers(without)])
    build = pods(render(EVERYTHING))["build"]["spec"]["containers"][0]
    assert build["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert build["resources"]["requests"] == {"nvidia.com/gpu": 2, "memory": "1Gi"}


def test_numbers_and_options_stay_what_they_are() -> None:
    """Helm reads numbers as floating-point ones."""
    templates = pods(render(EVERYTHING))
    found = environment(templates["server"]["spec"]["containers"][0])
    assert found["OPENAI_BLS_MAX_REQUEST_BYTES"] == "33554432"
    assert found["OPENAI_BLS_KEEP_ALIVE_INTERVAL_S"] == "2.5"
    assert found["OPENAI_BLS_TRUST_CHAT_TEMPLATE"] == "false"
    arguments = templates["build"]["spec"]["containers"][0]["args"]
    assert "--trust-remote-code" in arguments
    assert not {"true", "--force"} & set(arguments)
    long = merged(BUILD, {"engine": {"build": {"options": {"max-tokens-in-kv-cache": 4000000}}}})
    arguments = pods(render(long))["server"]["spec"]["initContainers"][0]["args"]
    assert arguments[arguments.index("--max-tokens-in-kv-cache") + 1] == "4000000"


def test_what_was_built_for_another_image_or_with_other_options_is_left_alone() -> None:
    first = repository_of(BUILD)
    assert re.fullmatch(r"/models/[0-9a-f]{12}", first)
    assert repository_of(merged(BUILD, {"replicas": 1, "settings": {"max_choices": 4}})) == first
    others = (
        {"image": {"tag": "2"}},
        {"engine": {"build": {"options": {"max-batch-size": 8}}}},
        {"engine": {"build": {"model": "org/other"}}},
    )
    assert len({first, *(repository_of(merged(BUILD, other)) for other in others)}) == 4


def test_the_build_writes_where_the_server_reads() -> None:
    for values in (BUILD, EVERYTHING, GROUP, SIDECAR, HEADLESS):
        templates = pods(render(values))
        server = templates["server"]["spec"]
        builder = templates["build"]["spec"]["containers"][0] if "build" in templates else server["initContainers"][0]
        assert environment(builder)["OPENAI_BLS_MODEL_REPOSITORY"] == repository_of(values)
        assert builder["args"][0] == "build"
        if "build" in templates:
            assert environment(server["initContainers"][0])["PLACE"] == repository_of(values)
            job = templates["build"]["spec"]["volumes"]
            assert [volume for volume in job if volume["name"] == "models"] == [
                volume for volume in server["volumes"] if volume["name"] == "models"
            ]


def test_a_job_with_other_pods_is_another_job() -> None:
    """For none of its fields can be changed."""
    changes: tuple[Values, ...] = ({}, {"tolerations": []}, {"replicas": 3})
    jobs = [of_kind(render(merged(EVERYTHING, change)), "Job")[0] for change in changes]
    one, other, same = (job["metadata"]["name"] for job in jobs)
    assert one == same != other


def test_secrets_go_only_where_they_are_needed() -> None:
    for values in (EVERYTHING, SIDECAR, merged(GROUP, {"huggingFace": {"existingSecret": "hub"}})):
        for component, template in pods(render(values)).items():
            for container in containers(template):
                names = {entry["name"] for entry in container.get("env", ()) if "valueFrom" in entry}
                expected = {"server": {"OPENAI_BLS_API_KEY"}, "build-engine": {"HF_TOKEN"}}
                assert names == expected.get(container["name"], set()), component


def test_secrets_that_are_files() -> None:
    """Whole folders in the server alone: the kubelet brings no single file up to date."""
    expected = {
        "OPENAI_BLS_API_KEYS_FILE": ("named-keys", "clients.txt"),
        "OPENAI_BLS_SSL_CERTFILE": ("certificate", "tls.crt"),
        "OPENAI_BLS_SSL_KEYFILE": ("certificate", "tls.key"),
        "OPENAI_BLS_SSL_CA_CERTS": ("clients", "ca.crt"),
    }
    for values in (EVERYTHING, SIDECAR, merged(GROUP, {key: EVERYTHING[key] for key in ("tls", "apiKeysFile")})):
        for component, template in pods(render(values)).items():
            volumes = {volume["name"]: volume["secret"] for volume in template["spec"]["volumes"] if "secret" in volume}
            for container in containers(template):
                places = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
                found = {}
                for name, path in environment(container).items():
                    if name in expected:
                        folder, _, file = path.rpartition("/")
                        secret = volumes[places[folder]["name"]]
                        assert places[folder]["readOnly"]
                        assert "subPath" not in places[folder]
                        assert {"key": file, "path": file} in secret["items"]
                        assert secret["defaultMode"] == 0o440
                        found[name] = (secret["secretName"], file)
                assert found == (expected if container["name"] == "server" else {}), component
            if component != "server":
                assert not volumes.keys() & {"keys", "tls", "client-ca"}


def test_probes_and_scrapes_speak_as_v1_does() -> None:
    for values, scheme in ((EVERYTHING, "HTTPS"), (BUILD, "HTTP")):
        manifests = render({**values, "podMonitor": {"enabled": True}})
        (server,) = pods(manifests)["server"]["spec"]["containers"]
        assert server["readinessProbe"]["httpGet"]["scheme"] == scheme
        (monitor,) = of_kind(manifests, "PodMonitor")
        v1, triton = monitor["spec"]["podMetricsEndpoints"]
        assert v1.get("scheme", "http") == scheme.lower()
        assert "scheme" not in server["startupProbe"]["httpGet"] | triton


def test_engines_that_lie_ready() -> None:
    claim = {"engine": {"source": "claim", "path": "/qwen/"}, "storage": {"existingClaim": "engines"}}
    server = pods(render(claim))["server"]
    assert repository_of(claim) == "/models/qwen"
    assert "initContainers" not in server["spec"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "engines"}} in server["spec"]["volumes"]
    image: Values = {"engine": {"source": "image"}}
    assert repository_of(image) == "/models"
    mounts = pods(render(image))["server"]["spec"]["containers"][0]["volumeMounts"]
    assert "/models" not in {mount["mountPath"] for mount in mounts}
    assert of_kind(render(image), "StatefulSet")[0]["spec"].get("volumeClaimTemplates") is None


def test_a_group() -> None:
    manifests = render(GROUP)
    template = of_kind(manifests, "LeaderWorkerSet")[0]["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 3
    leader = template["leaderTemplate"]["spec"]["containers"][0]
    assert environment(leader)["GPUS_PER_NODE"] == "8"
    assert environment(leader)["BACKEND"] == "python"
    # Workers answer nobody.
    worker = template["workerTemplate"]
    for service in of_kind(manifests, "Service"):
        assert not service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    policy = of_kind(manifests, "NetworkPolicy")[0]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    assert {"from": [{"podSelector": policy["podSelector"]}]} in policy["ingress"]


def test_the_engine_in_a_container_of_its_own() -> None:
    """Started before the server, stopped after it, with the GPUs, and as the same user, or the socket is refused."""
    template = pods(render(SIDECAR))["server"]
    engine, (server,) = engine_container(template), template["spec"]["containers"]
    assert engine is template["spec"]["initContainers"][-1]
    assert engine["restartPolicy"] == "Always"
    assert engine["securityContext"] == server["securityContext"]
    assert "runAsUser" not in engine["securityContext"]
    assert engine["resources"] == {
        "requests": {"nvidia.com/gpu": 1, "cpu": "4", "memory": "2Gi"},
        "limits": {"nvidia.com/gpu": 1, "memory": "3Gi"},
    }
    assert "gpu" not in json.dumps(server["resources"])
    assert environment(server)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(engine)
    socket = engine["args"][engine["args"].index("--socket") + 1]
    assert environment(server)["OPENAI_BLS_ENGINE_ADDRESS"] == f"unix:{socket}"
    assert engine["startupProbe"]["exec"]["command"][-2:] == ["--socket", socket]
    folders = [
        {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]} for container in (engine, server)
    ]
    for folder in ("/run/openai_bls", "/models"):
        assert folders[0][folder] == folders[1][folder]
    # Two containers write there.
    assert folders[0]["/tmp"] != folders[1]["/tmp"]
    # The volume itself is open to every user: the engine makes a folder in it.
    assert Path(socket).parent.parent == Path("/run/openai_bls")
    assert engine["args"][:3] == ["engine", "--model-dir", f"{repository_of(SIDECAR)}/tensorrt_llm/1"]
    one = pods(render(merged(SIDECAR, {"engine": {"sidecar": {"image": {"tag": "2"}}}})))["server"]
    assert engine_container(one)["image"] == "openai_bls-engine:2"
    assert repository_of(merged(SIDECAR, {"image": {"digest": "", "tag": "2"}})) == repository_of(SIDECAR)


def test_each_probe_restarts_the_container_that_it_asks_about() -> None:
    template = pods(render(SIDECAR))["server"]
    engine, (server,) = engine_container(template), template["spec"]["containers"]
    assert server["livenessProbe"]["exec"]["command"][-2:] == ["--of", "server"]
    # The certificate is the server's, and the engine's container has no setting that tells of it.
    assert engine["livenessProbe"]["exec"]["command"][-3:] == ["--of", "engine", "--https"]
    assert "--of" not in pods(render(EVERYTHING))["server"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]


def test_settings_go_to_the_container_that_reads_them() -> None:
    template = pods(render(SIDECAR))["server"]
    engine, server = environment(engine_container(template)), environment(template["spec"]["containers"][0])
    assert {name for name in engine if name.startswith("OPENAI_BLS_")} == {
        "OPENAI_BLS_ENABLE_KV_CACHE_REUSE",
        "OPENAI_BLS_ENGINE_VLLM_CLIENT",
    }
    assert not {"OPENAI_BLS_ENABLE_KV_CACHE_REUSE", "OPENAI_BLS_ENGINE_VLLM_CLIENT"} & set(server)
    assert "OPENAI_BLS_TRUST_CHAT_TEMPLATE" in server


def test_a_group_with_vllm() -> None:
    """The leader has the server and machine 0; the other pods run workers, and all wait for the engine's Job alike."""
    manifests = render(HEADLESS)
    template = of_kind(manifests, "LeaderWorkerSet")[0]["spec"]["leaderWorkerTemplate"]
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    engine, (headless,) = engine_container(leader), worker["spec"]["containers"]
    assert leader["spec"]["initContainers"][0] == worker["spec"]["initContainers"][0]
    assert headless["args"][-1] == "--headless"
    assert "--socket" not in headless["args"]
    machines = [word for word in headless["args"] if "=" in word]
    assert machines == [word for word in engine["args"] if "=" in word]
    assert machines[:5] == [
        "nnodes=$(LWS_GROUP_SIZE)",
        "node_rank=$(NODE_RANK)",
        "master_addr=$(LWS_LEADER_ADDRESS)",
        "master_port=31000",
        "join_timeout_s=60",
    ]
    rank = {"fieldRef": {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}}
    for container in (engine, headless):
        assert {"name": "NODE_RANK", "valueFrom": rank} in container["env"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert container["image"] == "openai_bls-engine:1"
    assert "command" not in leader["spec"]["containers"][0]
    for pod in (leader, worker):
        assert "ssh" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    [scripts] = of_kind(manifests, "ConfigMap")
    assert set(scripts["data"]) == {"liveness.py", "wait-for-engine.sh"}


def test_nobody_is_let_in_unless_named() -> None:
    policy = of_kind(render(merged(BUILD, {"networkPolicy": {"enabled": True}})), "NetworkPolicy")[0]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert not policy["ingress"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "engine.build.model: give the hub id"),
        (merged(BUILD, {"engine": {"build": {"mode": "job"}}}), "needs a volume that the pods share"),
        (merged(BUILD, {"kind": "Deployment", "replicas": 2}), "would build side by side"),
        (merged(BUILD, {"storage": {"existingClaim": "x"}, "autoscaling": {"enabled": True}}), "build side by side"),
        (merged(GROUP, {"engine": {"build": {"mode": "init"}}, "autoscaling": {"enabled": False}}), "mode job"),
        (merged(GROUP, {"multinode": {"sshSecret": ""}}), "needs multinode.sshSecret"),
        (merged(GROUP, {"gpus": 0}), "there is a rank for each"),
        (merged(HEADLESS, {"multinode": {"sshSecret": "x"}}), "vLLM's workers (engine.process sidecar) need none"),
        (merged(SIDECAR, {"engine": {"source": "image"}}), "needs a model repository that both containers can mount"),
        (merged(BUILD, {"engine": {"process": "pod"}}), "process"),
        ({"engine": {"source": "claim", "path": "x"}}, "needs storage.existingClaim"),
        ({"engine": {"source": "claim"}, "storage": {"existingClaim": "x"}}, "engine.path: give the folder"),
        (merged(BUILD, {"autoscaling": {"minReplicas": 5}}), "minReplicas is greater"),
        (merged(BUILD, {"autoscaling": {"enabled": True, "waitingRequests": None}}), "to scale on"),
        (merged(BUILD, {"ingress": {"enabled": True}}), "ingress.hosts: give at least one"),
        (merged(BUILD, {"httpRoute": {"enabled": True}}), "httpRoute.parentRefs: name the gateway"),
        (merged(BUILD, {"kind": "DaemonSet"}), "kind"),
        (merged(BUILD, {"replica": 2}), "replica"),
        (merged(BUILD, {"settings": {"max_concurent_requests": 2}}), "max_concurent_requests"),
        (merged(BUILD, {"settings": {"api_key": "x"}}), "api_key"),
        (merged(BUILD, {"settings": {"ssl_certfile": "x"}}), "ssl_certfile"),
        (merged(BUILD, {"tls": {"clientCaSecret": "x"}}), "tls.clientCaSecret needs tls.existingSecret"),
        (merged(BUILD, {"engine": {"build": {"options": {"model-repository": "/x"}}}}), "model-repository"),
        (merged(BUILD, {"ports": {"openai": 0}}), "openai"),
        (merged(BUILD, {"multinode": {"size": 1}}), "size"),
    ],
)
def test_values_that_are_refused(values: Values, says: str) -> None:
    with pytest.raises(HelmError) as info:
        render(values)
    assert says in str(info.value)


def test_the_schema_knows_every_value_and_no_other() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(values: Values, part: dict[str, Any], where: str) -> None:
        # `global` is Helm's own.
        assert set(values) == set(part["properties"]) - {"global"}, where
        for key, value in values.items():
            inner = part["properties"][key]
            # Maps of the user's own keys have no properties.
            if isinstance(value, dict) and "properties" in inner and value:
                compare(value, inner, f"{where}.{key}")

    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    compare({**defaults, "resources": {"requests": {}, "limits": {}}}, schema, "values")
    # Held against by an implementation other than Helm's, too.
    jsonschema.Draft7Validator.check_schema(schema)
    for values in CASES.values():
        jsonschema.validate(values, schema, jsonschema.Draft7Validator)
