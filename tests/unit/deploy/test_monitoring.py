"""Rules and dashboard: valid, alike wherever they are provisioned, and about metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.metrics.histograms import HISTOGRAMS
from openai_bls.pipeline.metrics.metrics import Metrics
from tests.tools import tool
from tests.unit.core_support import Bench
from tests.unit.deploy.support import BUILD, CHART, EVERYTHING, ROOT, of_kind, render

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
RULES, ALERTS = PROMETHEUS / "rules.yaml", PROMETHEUS / "alerts.yaml"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "openai_bls.json").read_text("utf-8"))


def promtool(*arguments: str, cwd: Path = PROMETHEUS) -> str:
    """What promtool says."""
    done = subprocess.run([tool("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text("utf-8"))["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    """Of everything that is to be evaluated."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    return found + [rule["expr"] for rule in (*rules(RULES), *rules(ALERTS))]


def _labels(family: Any) -> set[str]:
    """Of what prometheus_client counts or collects, which tells them nowhere else before there is a sample."""
    return set(family._labelnames)


async def exported() -> dict[str, set[str]]:
    """Name → labels of the series that a server with a file of keys can have; `le` of buckets is left out."""
    service = Bench().service
    service.settings = OpenAiBlsSettings(api_keys_file="/keys")
    metrics = Metrics(service)
    found: dict[str, set[str]] = {}
    for counted, names in metrics._registry._collector_to_names.items():
        found |= {key: _labels(counted) for key in names}
    for family in metrics.collect():
        # Families that are made at the scrape.
        if hasattr(family, "_labelnames"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = _labels(family)
    for histogram in HISTOGRAMS:
        for suffix in ("bucket", "count", "sum"):
            found[f"{histogram.name}_{suffix}"] = set(histogram.labels)
    return found


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "rules", "rules.yaml", "alerts.yaml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_the_alerts_fire_when_they_should_and_not_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules.test.yaml")


def test_each_alert_and_each_record_is_in_a_test_of_promtool() -> None:
    text = (PROMETHEUS / "rules.test.yaml").read_text("utf-8")
    named = [rule["alert"] for rule in rules(ALERTS)]
    assert len(named) == len(set(named))
    # Their expressions are a comparison with 0, or are evaluated on a real server alone.
    untested = {"OpenAIBlsEngineDown"} | {
        f"instance_model:openai_bls_{name}_seconds:p95_rate5m"
        for name in ("time_to_first_token", "time_per_output_token", "request_queue_time")
    }
    for name in named + [rule["record"] for rule in rules(RULES)]:
        assert name in untested or name in text, name


async def test_every_metric_that_is_named_is_exported() -> None:
    recorded = {rule["record"] for rule in rules(RULES)}
    known = await exported()
    for expression in expressions():
        for name in re.findall(r"[a-z_]+:[\w:]+", expression):
            assert name in recorded, expression
        for name in re.findall(r"(?<![\w:])openai_bls_\w+", expression):
            assert name in known, expression


async def test_the_dashboard_asks_for_labels_that_there_are() -> None:
    labels = await exported()
    always = {"instance", "le"}
    for panel in panels():
        for target in panel["targets"]:
            names = set(re.findall(r"openai_bls_\w+", target["expr"])) & labels.keys()
            known = always | set().union(*(labels[name] for name in names))
            grouped = {part.strip() for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for part in by.split(",")}
            matched = set(re.findall(r"(\w+)=~", target["expr"]))
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert grouped | matched <= known, target["expr"]
            assert shown <= grouped, panel["title"]


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """As far as can be told without Grafana: ids, places, variables, and the fields that it cannot do without."""
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "instance", "model"}
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}


def test_the_chart_brings_the_same() -> None:
    manifests = render(EVERYTHING)
    (rule,) = of_kind(manifests, "PrometheusRule")
    given = [yaml.safe_load(path.read_text("utf-8"))["groups"] for path in (RULES, ALERTS)]
    assert rule["spec"]["groups"] == [*given[0], *given[1]]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = (one for one in of_kind(manifests, "ConfigMap") if "openai_bls.json" in one["data"])
    assert json.loads(dashboard["data"]["openai_bls.json"]) == DASHBOARD
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "LLM"}
    kinds = {(one["kind"], one["metadata"]["name"]) for one in render(BUILD)}
    assert not {name for kind, name in kinds if kind == "PrometheusRule" or name.endswith("-dashboard")}
    for path in (CHART / "files").iterdir():
        assert path.resolve().is_relative_to(ROOT / "deploy")


@pytest.mark.parametrize("path", sorted((GRAFANA / "provisioning").rglob("*.yaml")), ids=lambda path: path.parent.name)
def test_grafana_is_provisioned_for_compose(path: Path) -> None:
    given = yaml.safe_load(path.read_text("utf-8"))
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    assert given["apiVersion"] == 1
    mounted = dict(volume.split(":")[:2] for volume in compose["grafana"]["volumes"])
    if "datasources" in given:
        (source,) = given["datasources"]
        assert source["url"] == f"http://prometheus:{compose['prometheus']['ports'][0].rpartition(':')[2]}"
        scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
        assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    else:
        (provider,) = given["providers"]
        assert mounted["./deploy/grafana/dashboards"] == provider["options"]["path"]
        home = dict(entry.split("=", 1) for entry in compose["grafana"]["environment"])
        assert home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{provider['options']['path']}/openai_bls.json"


def test_prometheus_scrapes_the_servers_of_compose() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    servers = {name for name, service in compose.items() if "healthcheck" in service and "ports" in service}
    assert servers == {"openai_bls", "triton", "demo"}
    for job in yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        assert set(found["names"]) == servers
        for name in servers:
            assert any(port.endswith(f":{found['port']}") for port in compose[name]["ports"])
