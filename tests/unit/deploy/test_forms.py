"""The forms of deployment agree: the chart, the KServe manifests, compose.yaml and the images, field by field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import yaml

from openai_bls.commands.main import parse
from openai_bls.launcher.tritonserver import process
from openai_bls.launcher.tritonserver.ports import Ports
from tests.unit.deploy.support import (
    BUILD,
    KSERVE,
    ROOT,
    Manifest,
    Values,
    environment,
    load_manifests,
    pods,
    render,
)

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
API_KEY: Values = {"apiKey": {"existingSecret": "openai-bls-api-key"}}
# What tritonserver is given after its exit timeout, and the launcher after that.
AFTER_THE_TIMEOUT_S = 2 * process._GRACE_SECONDS


class Form(NamedTuple):
    """How a server is deployed. None: that form does not say, and what is below it counts."""

    exit_timeout: int
    drain_delay: int
    """Seconds between the order to stop and the stop."""
    grace: int
    """Seconds between the order to stop and the kill."""
    user: int | None
    group: int | None
    sandbox: tuple[Any, ...]
    """No new privileges, a root file system that is read-only, no capabilities, the system calls."""
    writable: frozenset[str]
    """Folders that may be written to, where the root file system may not."""
    folders: frozenset[str]
    """Folders of its variables, in which libraries write."""
    offline: str | None
    shm_mib: int
    ports: frozenset[int]
    """Ports that others can reach."""
    health: frozenset[str]
    """Paths and programs by which it is asked whether it lives and is ready."""
    startup_s: int
    """Seconds that the engine may take to load."""
    key: tuple[str, str] | str
    """Secret and its key, or the variable that is passed on."""
    gpus: int | None


def of_pod(pod: Manifest, container: Manifest, security: Manifest, gpus: Any) -> Form:
    arguments = container["args"]
    options = parse("serve", arguments[1:])
    given = environment(container)
    (key,) = (entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] == "OPENAI_BLS_API_KEY")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (shm,) = (volumes[m["name"]] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm")
    size = re.fullmatch(r"(\d+)Gi", shm["emptyDir"]["sizeLimit"])
    assert size is not None
    assert shm["emptyDir"]["medium"] == "Memory"
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    asked = {probe["httpGet"]["path"] if "httpGet" in probe else probe["exec"]["command"][1] for probe in probes}
    startup = container["startupProbe"]
    return Form(
        exit_timeout=options.exit_timeout,
        drain_delay=int(container["lifecycle"]["preStop"]["exec"]["command"][1]),
        grace=pod["terminationGracePeriodSeconds"],
        user=security["runAsUser"],
        group=security["runAsGroup"],
        sandbox=(
            security["allowPrivilegeEscalation"],
            security["readOnlyRootFilesystem"],
            security["runAsNonRoot"],
            security["capabilities"]["drop"],
            security["seccompProfile"],
        ),
        writable=frozenset(m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")),
        folders=frozenset(str(given[name]) for name in ("HOME", "HF_HOME")),
        offline=given["HF_HUB_OFFLINE"],
        shm_mib=1024 * int(size[1]),
        ports=frozenset(port["containerPort"] for port in container["ports"]),
        health=frozenset(asked),
        startup_s=startup["periodSeconds"] * startup["failureThreshold"],
        key=(key["name"], key["key"]),
        gpus=int(gpus),
    )


def of_chart(values: Values) -> Form:
    pod = pods(render({**values, **API_KEY}))["server"]["spec"]
    (container,) = pod["containers"]
    security = {**pod["securityContext"], **container["securityContext"]}
    return of_pod(pod, container, security, container["resources"]["limits"].get("nvidia.com/gpu", 0))


def of_kserve() -> Form:
    (runtime,), (service,) = (
        load_manifests(KSERVE / f"{name}.yaml") for name in ("servingruntime", "inferenceservice")
    )
    predictor = service["spec"]["predictor"]
    (container,) = runtime["spec"]["containers"]
    together = {**container, "env": [*container["env"], *predictor["model"]["env"]]}
    gpus = predictor["model"]["resources"]["limits"]["nvidia.com/gpu"]
    return of_pod({**runtime["spec"], **predictor}, together, container["securityContext"], gpus)


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([sm])", text)
    assert match is not None
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]


def of_compose(name: str) -> Form:
    """A service, with what its image says where it does not."""
    service = COMPOSE[name]
    size = re.fullmatch(r"(?:\$\{SHM_SIZE:-)?(\d+)(mb|gb)\}?", service["shm_size"])
    assert size is not None
    image = stage(service["build"]["target"])
    return Form(
        exit_timeout=int(process.DEFAULT_EXIT_TIMEOUT_SECONDS),
        drain_delay=0,
        grace=seconds(service["stop_grace_period"]),
        user=image.user,
        group=image.group,
        sandbox=(),
        writable=frozenset(),
        folders=image.folders,
        offline=None,
        shm_mib=int(size[1]) * {"mb": 1, "gb": 1024}[size[2]],
        ports=frozenset(int(port.rpartition(":")[2]) for port in service["ports"]),
        health=frozenset({service["healthcheck"]["test"][2]}),
        startup_s=seconds(service["healthcheck"]["start_period"]),
        key=next((entry for entry in service["environment"] if entry == "OPENAI_BLS_API_KEY"), ""),
        gpus=None,
    )


class Stage(NamedTuple):
    """A stage of the Dockerfile, as far as a form of deployment depends on it."""

    user: int
    group: int
    folders: frozenset[str]
    made: frozenset[str]
    """Folders that are its user's."""
    ports: frozenset[int]
    health: str


def stage(name: str) -> Stage:
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert match is not None, name
    text = match[1].replace("\\\n", " ")
    (user,) = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    made = re.findall(r"install -d -o 1000 -g 0 -m 277\d ([^&\n]+)", text)
    (ports,) = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE) or [""]
    (health,) = re.findall(r'^HEALTHCHECK .*CMD \["python3", "([^"]+)"\]$', text, re.MULTILINE) or [""]
    return Stage(
        user=int(user[0]),
        group=int(user[1]),
        folders=frozenset(re.findall(r"(?:HOME|HF_HOME)=(\S+)", text)),
        made=frozenset(folder for line in made for folder in line.split()),
        ports=frozenset(map(int, ports.split())),
        health=health,
    )


COMPOSE_SERVERS = ("openai_bls", "triton", "demo")
FORMS: dict[str, Callable[[], Form]] = {
    "chart": lambda: of_chart(BUILD),
    "kserve": of_kserve,
    **{f"compose {name}": lambda name=name: of_compose(name) for name in COMPOSE_SERVERS},  # type: ignore[misc]
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
# Fields in which the KServe manifests differ from the chart by default, and why.
KSERVE_DIFFERS = {
    "ports": "KServe sends requests to one port, that of /v1, and Triton's own stay within the pod",
    "health": "no port of Triton's for the kubelet, and no ConfigMap with the chart's program",
}


def test_kserve_has_what_the_chart_has() -> None:
    """All but what is listed, and nothing is listed that is equal."""
    chart, kserve = of_chart(BUILD), of_kserve()
    differing = {name for name in Form._fields if getattr(chart, name) != getattr(kserve, name)}
    assert differing == KSERVE_DIFFERS.keys()
    assert kserve.ports < chart.ports


def test_kserve_probes_as_often_as_the_chart() -> None:
    (container,) = load_manifests(KSERVE / "servingruntime.yaml")[0]["spec"]["containers"]
    ours = pods(render(BUILD))["server"]["spec"]["containers"][0]
    for probe, fields in {
        "startupProbe": ("periodSeconds", "timeoutSeconds", "failureThreshold"),
        "readinessProbe": ("periodSeconds", "timeoutSeconds", "failureThreshold", "httpGet"),
        "livenessProbe": ("periodSeconds", "failureThreshold"),
    }.items():
        for field in fields:
            found = container[probe][field]
            if field == "httpGet":
                assert found["path"] == ours[probe][field]["path"]
            else:
                assert found == ours[probe][field], (probe, field)


@forms
def test_a_stop_has_the_time_that_it_takes(form: Callable[[], Form]) -> None:
    found = form()
    assert found.grace >= found.drain_delay + found.exit_timeout + AFTER_THE_TIMEOUT_S
    # A proxy before a pod learns late of its end; before a container of compose there is none that does.
    assert (found.drain_delay > 0) == bool(found.sandbox)


@forms
def test_libraries_write_where_they_can(form: Callable[[], Form]) -> None:
    found = form()
    assert len(found.folders) == 2
    if found.writable:
        roots = tuple(f"{root}/" for root in found.writable)
        assert all(f"{folder}/".startswith(roots) for folder in found.folders)
        assert {"/tmp", "/dev/shm"} <= found.writable
        assert found.offline == "1"


@forms
def test_tensors_have_more_shared_memory_than_dockers_default(form: Callable[[], Form]) -> None:
    assert form().shm_mib >= 256


@pytest.mark.parametrize("name", COMPOSE_SERVERS)
def test_compose_says_what_its_image_says(name: str) -> None:
    found, image = of_compose(name), stage(COMPOSE[name]["build"]["target"])
    assert found.ports == image.ports == frozenset((Ports().openai, Ports().http, Ports().grpc, Ports().metrics))
    assert found.health == {image.health}
    assert image.folders <= image.made
    # What is mounted is a folder that its user may write to, or is only read.
    for mount in COMPOSE[name].get("volumes", ()):
        _, folder, *mode = mount.split(":")[-3:] if mount.startswith("${") else mount.split(":")
        assert mode == ["ro"] or folder.rpartition(":")[2] in image.made, mount


def test_one_user_for_all() -> None:
    """Groups differ: the image's is 0, in which OpenShift runs a user of its choice, and pods give the files theirs."""
    users = {name: form().user for name, form in FORMS.items()}
    assert set(users.values()) == {1000}
    assert {stage(name).group for name in ("cpu", "runtime", "engine")} == {0}


def test_one_key_for_all() -> None:
    assert of_chart(BUILD).key == of_kserve().key == ("openai-bls-api-key", "api-key")
    assert {name: of_compose(name).key for name in COMPOSE_SERVERS} == {
        "openai_bls": "OPENAI_BLS_API_KEY",
        "triton": "OPENAI_BLS_API_KEY",
        # A toy for this machine.
        "demo": "",
    }


def test_an_engine_gets_the_same_time_to_load() -> None:
    """The demo's is small."""
    found = {name: form().startup_s for name, form in FORMS.items()}
    assert found.pop("compose demo") < 1800
    assert set(found.values()) == {1800}
