"""What the deployment says of the rest of the project is so: flags, variables, ports, paths, metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls import __version__
from openai_bls.commands.building import command as build
from openai_bls.commands.main import parse
from openai_bls.core.engine import EngineStats
from openai_bls.core.settings import (
    EngineSettings,
    OpenAiBlsSettings,
    PreprocessingSettings,
    engine_overrides,
    load,
)  # fmt: skip
from openai_bls.engines.registry import parse_options
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.transport.engine_process.loading import _source
from openai_bls.transport.engine_process.options import engine_settings, listen_address
from openai_bls.transport.engine_process.source import RemoteProcess
from tests.unit.core_support import Bench
from tests.unit.deploy.support import (
    CASES,
    CHART,
    EVERYTHING,
    KSERVE,
    ROOT,
    Manifest,
    Values,
    all_cases,
    chart,
    containers,
    environment,
    load_manifests,
    of_kind,
    pods,
    render,
)

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGES = ("kubernetes", "kubernetes-nodes")
DOCS = "".join((ROOT / "docs" / "operations" / f"{page}.md").read_text("utf-8") for page in PAGES)
_SCALING = ("keda/scaledobject.yaml", "prometheus/adapter.yaml")
SCALING = "".join((ROOT / "deploy" / name).read_text("utf-8") for name in _SCALING)
SETTINGS = (OpenAiBlsSettings, PreprocessingSettings, EngineSettings)


(KSERVE_CONTAINER,) = load_manifests(KSERVE / "servingruntime.yaml")[0]["spec"]["containers"]
SERVING = {name: pods(render(values))["server"]["spec"]["containers"][0] for name, values in CASES.items()}


def serve_arguments(container: Manifest) -> list[str]:
    """What reaches `python3 -m openai_bls serve`; leader.sh puts the ranks' options before."""
    arguments = list(container["args"])
    if "command" in container:
        ranks = re.search(r'start\.py" serve (--world-size) .* (--hosts) "\$hosts" "\$@"\n', leader_script())
        assert ranks is not None
        return ["serve", ranks[1], "24", ranks[2], "a:8,b:8,c:8", *arguments]
    return arguments


def leader_script() -> str:
    return (CHART / "files" / "leader.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("container", [*SERVING.values(), KSERVE_CONTAINER], ids=[*SERVING, "kserve"])
def test_the_launcher_knows_the_options(container: Manifest) -> None:
    arguments = serve_arguments(container)
    assert arguments.pop(0) == "serve"
    options = parse("serve", arguments)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert options.host == "0.0.0.0"
    assert options.openai_port == ports.get("openai", ports.get("http1"))
    for name in {"http", "grpc", "metrics"} & set(ports):
        assert getattr(options, f"{name}_port") == ports[name]


@all_cases
def test_the_build_knows_the_options(values: Values) -> None:
    builders = [
        container
        for template in pods(render(values)).values()
        for container in containers(template)
        if container["name"] == "build-engine"
    ]
    assert len(builders) == (chart().merge_values(values)["engine"]["source"] == "build")
    for builder in builders:
        command, *arguments = builder["args"]
        assert command == "build"
        build.wanted(parse("build", arguments))


@all_cases
def test_variables_are_read_by_the_server(values: Values) -> None:
    for template in pods(render(values)).values():
        for container in template["spec"]["containers"]:
            given = {name: value or "secret" for name, value in environment(container).items()}
            settings: dict[str, Any] = {}
            for kind in SETTINGS:
                loaded = load(kind, {}, given)
                settings |= {name: getattr(loaded, name) for name in kind.__struct_fields__}
            parse_options(engine_overrides(given))
            ours = {name.removeprefix("OPENAI_BLS_").lower() for name in given if name.startswith("OPENAI_BLS_")}
            ours -= {"model_repository"} | {f"engine_{name}" for name in engine_overrides(given)}
            assert ours <= set(settings)
    assert load(OpenAiBlsSettings, {}, {"OPENAI_BLS_API_KEY": "secret"}).api_key == "secret"


REPLACED = {"LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "first", "NODE_RANK": "1"}
"""What the kubelet puts into arguments."""


@pytest.mark.parametrize("case", [name for name, values in CASES.items() if "sidecar" in str(values)])
def test_the_engines_process_knows_its_options(case: str) -> None:
    templates = pods(render(CASES[case]))
    found = [
        container
        for pod in templates.values()
        for container in containers(pod)
        if container.get("args", [""])[0] == "engine"
    ]
    assert found
    for container in found:
        words = [re.sub(r"\$\((\w+)\)", lambda match: REPLACED[match[1]], word) for word in container["args"]]
        options = parse(words[0], words[1:])
        given = {name: value or "" for name, value in environment(container).items()}
        settings, overrides = engine_settings(options, given)
        parse_options(overrides)
        named = set(EngineSettings.__struct_fields__) & {name.removeprefix("OPENAI_BLS_").lower() for name in given}
        assert named == {name for name in CASES[case].get("settings", {}) if getattr(settings, name, None) is not None}
        command = container.get("startupProbe", {}).get("exec", {}).get("command")
        if command is not None:
            assert command[0] == f"{chart().values['engine']['sidecar']['image']['sourceDir']}/venv/bin/openai-bls"
            asked = parse(command[1], command[2:])
            assert asked.status
            assert listen_address(asked) == listen_address(options)
        else:
            assert options.headless


@all_cases
def test_the_server_takes_no_option_of_an_engine_elsewhere(values: Values) -> None:
    """What the engine's process alone can honour is refused on Triton's side."""
    given = environment(pods(render(values))["server"]["spec"]["containers"][0])
    given = {name: value or "secret" for name, value in given.items()}
    source = _source(Path("/nowhere"), engine_overrides(given), load(EngineSettings, {}, given))
    assert isinstance(source, RemoteProcess) == ("OPENAI_BLS_ENGINE_ADDRESS" in given)


def test_settings_of_the_engine_are_those_that_triton_refuses() -> None:
    text = (CHART / "templates" / "_engine.tpl").read_text(encoding="utf-8")
    listed = re.search(r'define "openai-bls.engineSettings" -\}\}\n(.*)\n', text)
    assert listed is not None
    fields = set(EngineSettings.__struct_fields__)
    both = {"exclude_input_in_output", "lora_watch_dir"}
    assert set(listed[1].split()) == {name for name in fields - both if not name.startswith("engine_")}


def test_ports_are_those_of_the_launcher() -> None:
    ports = chart().values["ports"]
    defaults = Ports()
    assert ports == {name: getattr(defaults, name) for name in ("openai", "http", "grpc", "metrics")}


def test_paths_are_those_of_the_image() -> None:
    source = chart().values["image"]["sourceDir"]
    assert set(re.findall(r"^WORKDIR (/opt/.*)$", DOCKERFILE, re.MULTILINE)) == {source}
    assert chart().values["engine"]["sidecar"]["image"]["sourceDir"] == source
    entries = re.findall(r"^ENTRYPOINT .*$", DOCKERFILE, re.MULTILINE)
    assert entries
    # The chart's `args` take the place of CMD, so they go to start.py.
    assert all(re.search(rf'"({source}/venv/bin/)?python3", "{source}/docker/start.py"\]$', entry) for entry in entries)
    assert set(re.findall(r"OPENAI_BLS_MODEL_REPOSITORY=(\S+)", DOCKERFILE)) == {"/models"}
    assert '"$SOURCE_DIR/docker/start.py" serve' in leader_script()
    assert set(re.findall(r"^FROM .* AS (cpu|with-engine)$", DOCKERFILE, re.MULTILINE)) == {"cpu", "with-engine"}
    users = set(re.findall(r"^USER (\d+)", DOCKERFILE, re.MULTILINE))
    assert users == {str(chart().values["podSecurityContext"]["runAsUser"])}
    assert users == {str(KSERVE_CONTAINER["securityContext"]["runAsUser"])}
    assert KSERVE_CONTAINER["livenessProbe"]["exec"]["command"] == ["python3", f"{source}/docker/health.py"]


def test_versions_are_the_librarys() -> None:
    metadata = chart().metadata
    assert metadata["appVersion"] == __version__
    assert KSERVE_CONTAINER["image"] == f"openai_bls:{__version__}"


async def test_metrics_are_those_of_the_server() -> None:
    bench = Bench()
    bench.engine.stats = EngineStats(1, 2, 0.5, 3, 4)
    page = (await bench.service.metrics.scrape()).decode()
    told = set(re.findall(r"^(\w+)(?:\{| )", page, re.MULTILINE))
    [scaler] = of_kind(render(EVERYTHING), "HorizontalPodAutoscaler")
    targets = {
        metric["pods"]["metric"]["name"]: metric["pods"]["target"]["averageValue"]
        for metric in scaler["spec"]["metrics"]
    }
    assert len(targets) == 3
    assert set(targets) <= told
    # The KV cache is told as a share.
    assert targets["openai_bls_engine_kv_cache_usage_ratio"] == "850m"
    assert targets["openai_bls_requests_waiting"] == "4"
    named = set(re.findall(r"\bopenai_bls_(?:engine|requests|generation|time)_\w+", DOCS + SCALING))
    assert set(targets) <= named <= told | set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    # Counters that have not been counted yet have a type and no line.
    probed = re.findall(r'^    "(openai_bls_\w+)",$', (CHART / "files" / "liveness.py").read_text(), re.MULTILINE)
    assert len(probed) == 3
    assert set(probed) <= set(re.findall(r"^# TYPE (\w+) counter$", page, re.MULTILINE))


def test_values_that_the_docs_name_exist() -> None:
    def paths(part: dict[str, Any], where: str = "") -> Iterator[str]:
        for key, value in part.items():
            yield f"{where}{key}"
            if isinstance(value, dict):
                yield from paths(value, f"{where}{key}.")

    known = set(paths(chart().values))
    sections = "|".join(key for key, value in chart().values.items() if isinstance(value, dict))
    named = set(re.findall(rf"`((?:{sections})(?:\.[A-Za-z]+)+)`", DOCS))
    assert named
    assert named | set(re.findall(r"--set ([\w.]+)=", DOCS)) <= known
