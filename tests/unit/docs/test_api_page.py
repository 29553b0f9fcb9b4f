"""docs/api.md names every field of every request, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openai_bls.api.chat import schema
from openai_bls.api.embeddings.schema import EmbeddingsBody
from openai_bls.api.messages.schema import MessagesRequest
from openai_bls.api.registry import ENDPOINTS
from openai_bls.api.responses.schema import CreateRequest
from openai_bls.core.engine import EngineStats
from tests.unit.core_support import Bench

TEXT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """From a heading to the next of the same depth or less."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,4}} |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[2]


def fields(title: str) -> list[str]:
    """The names in the first column of a section's table of fields."""
    rows = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]


@pytest.mark.parametrize(
    ("titles", "request_type"),
    [
        (["Both", "Chat completions only"], schema.ChatCompletionRequest),
        (["Both", "Completions only"], schema.CompletionRequest),
        (["Responses"], CreateRequest),
        (["Messages"], MessagesRequest),
        (["Embeddings"], EmbeddingsBody),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else value.__name__,
)
def test_every_field_has_its_row(titles: list[str], request_type: type) -> None:
    listed = [name for title in titles for name in fields(title)]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(request_type.__struct_fields__)  # type: ignore[attr-defined]


def test_every_endpoint_has_its_row() -> None:
    text = section("Endpoints").replace("{id}", "{}")
    named = set(re.findall(r"`([a-z._]+)`", text))
    for endpoint in ENDPOINTS:
        # One of its paths is enough: some have the same with and without /v1.
        paths = [re.sub(r"\{.*?\}", "{}", path) for path in endpoint.paths]
        assert any(path in text for path in paths), endpoint.name
        assert endpoint.triton is None or endpoint.name in named


def test_every_metric_has_its_row() -> None:
    listed = re.findall(r"`(openai_bls_[a-z0-9_]+)`", section("Health and metrics"))
    assert len(listed) == len(set(listed))
    bench = Bench()
    bench.engine.stats = EngineStats(0, 0, 0.0, 0, 0)
    families = bench.service.metrics.collect()
    assert set(listed) == {family.name + "_total" * (family.type == "counter") for family in families}


def test_groups_of_fields() -> None:
    """What the table says of a field is what becomes of it."""
    for title in ("Both", "Chat completions only", "Completions only"):
        for row in re.findall(r"^\| (`.*)$", section(title), re.MULTILINE):
            names, verdict = row.split(" | ", 1)
            for name in re.findall(r"`([a-z_]+)`", names):
                harmless = name in schema.Harmless.__struct_fields__
                neutral = name in schema.UNSUPPORTED
                assert verdict.startswith("harmless") == harmless, name
                assert (verdict.startswith(("neutral", "refused"))) == neutral, name
                if verdict.startswith("refused"):
                    assert schema.UNSUPPORTED[name].values == (), name
