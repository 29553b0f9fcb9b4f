"""Tables of docs/ that the code must match: of the API, the metrics, and other servers' commands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from openai_bls.api.app import create_app
from openai_bls.api.chat import schema
from openai_bls.api.registry import ENDPOINTS
from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.settings import ENV_PREFIX, SettingsError
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensorrt_llm.requests import parse
from openai_bls.triton_models.tensors.models import MODELS
from tests.unit.core_support import Bench, engine_info
from tests.unit.docs import pages
from tests.unit.docs.api_tables import PAGES, TABLES, rewritten
from tests.unit.docs.pages import Row, build_options, code, rows, rows_of, serve_options

MIGRATE, BACKEND = "docs/guides/migrate.md", "docs/guides/migrate-tensorrtllm-backend.md"

# --- docs/api*.md, docs/reference/metrics.md


@pytest.mark.parametrize("sections", TABLES, ids=" + ".join)
def test_every_field_has_its_row(sections: tuple[str, ...]) -> None:
    listed = [name for row in _field_rows(*sections) for name in row.names if re.fullmatch("[a-z_0-9]+", name)]
    fields = [name for cls in TABLES[sections] for name in cls.__struct_fields__]
    assert set(listed) == set(fields)
    assert len(TABLES[sections]) > 1 or len(listed) == len(set(listed))


def _field_rows(*sections: str) -> list[Row]:
    (page,) = [page for page in PAGES if {row.section for row in rows(page)} >= set(sections)]
    return rows_of(page, *sections)


@pytest.mark.parametrize("page", PAGES)
def test_rows_say_what_the_fields_say(page: str) -> None:
    """`python -m tests.unit.docs.api_tables` writes them anew."""
    assert rewritten(page) == pages.text(page)


def test_every_endpoint_has_its_row() -> None:
    section = pages.text("docs/api.md").partition("\n## Endpoints\n")[2].partition("\n## ")[0].replace("{id}", "{}")
    named = set(re.findall(r"`([a-z._]+)`", section))
    for endpoint in ENDPOINTS:
        # One of its paths is enough: some have the same with and without /v1.
        paths = [re.sub(r"\{.*?\}", "{}", path) for path in endpoint.paths]
        assert any(path in section for path in paths), endpoint.name
        assert endpoint.triton is None or endpoint.name in named


def test_every_metric_has_its_row() -> None:
    listed = re.findall(r"^\|.*", pages.text("docs/reference/metrics.md"), re.MULTILINE)
    listed = re.findall(r"`((?:openai_bls|nv_trt_llm)_[a-z0-9_]+)`", "\n".join(listed))
    assert len(listed) == len(set(listed))
    bench = Bench()
    bench.engine.stats = EngineStats(0, 0, 0.0, 0, 0)
    families = bench.service.metrics.collect()
    assert set(listed) == {family.name + "_total" * (family.type == "counter") for family in families}


# --- docs/guides/migrate*.md: the first column is another project's, the last is ours

# Pieces of code in our columns that are nothing of ours: of NVIDIA's client, of requests, and plain words.
FOREIGN = {
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "--streaming", "400", "501",
    "generate", "generate_stream", "infer", "true", "false", "[batch, beams]",
}  # fmt: skip
GUIDE_ROWS = [*rows(MIGRATE), *rows(BACKEND)]
OPTION_ROWS = [row for row in GUIDE_ROWS if any(name.startswith("--") for name in row.names)]
PROSE = re.sub(r"^\|.*$", "", "".join(map(pages.without_blocks, (MIGRATE, BACKEND))), flags=re.MULTILINE)
IN_PROSE = [("", piece) for piece in code(PROSE) if re.match(rf"--|({'|'.join(MODELS)})\.", piece)]
IN_TABLES = [(row.header[-1], piece) for row in GUIDE_ROWS for piece in code(row.verdict)]


@cache
def routes() -> set[str]:
    """Of the /v1 application; nothing is asked of it."""
    return {cast(Any, route).path for route in create_app(Bench().service, cast(Any, None)).routes}


def is_setting(piece: str, folder: Path) -> bool:
    """Whether `render --set` takes it; without a value, whether there is a value that it takes."""
    for change in [piece] if "=" in piece else [f"{piece}={value}" for value in ("1", "0.5", "true", "auto")]:
        try:
            configure(folder / "model_repository", [change])
        except SettingsError:
            continue
        return True
    return False


def is_option(piece: str, column: str, folder: Path) -> bool:
    """Whether the program of the column, or any of ours, takes it with its value."""
    known = {"build/engine.py": build_options(), "serve": serve_options() | {"--backend"}}
    given = shlex.split(piece.partition(" -- ")[0])
    if not {word for word in given if word[:2] == "--"} <= known.get(column, build_options() | serve_options()):
        return False
    if len(given) > 1 and given[0] not in serve_options():
        backend = ["--backend", "cpp"] if given[0] == "--cpp-parameter" else []
        pages.take_build([*(word.replace("=path", f"={folder / 'adapter'}") for word in given), *backend], folder)
    return True


def is_field(name: str) -> bool:
    return name in schema.ChatCompletionRequest.__struct_fields__ or name in schema.CompletionRequest.__struct_fields__


def exists(piece: str, column: str, folder: Path) -> bool:
    if piece.startswith("--"):
        return is_option(piece, column, folder)
    if piece.startswith(ENV_PREFIX):
        return pages.is_variable(piece)
    if piece.startswith("/"):
        return piece == "/v1" or piece in routes()
    if piece.partition(".")[0] in MODELS and "." in piece:
        return is_setting(piece, folder)
    tensors = {tensor.name for model in MODELS.values() for tensor in (*model.inputs, *model.outputs)}
    known = tensors | set(MODELS) | {"serve", "json_schema", "finish_reason"}
    return is_field(piece) or piece in known or (piece.endswith("/") and (pages.ROOT / piece).is_dir())


def test_what_is_named_of_ours_exists(tmp_path: Path) -> None:
    pages.make_paths(tmp_path)
    for column, piece in dict.fromkeys(IN_TABLES + IN_PROSE):
        assert piece in FOREIGN or piece.startswith("python ") or exists(piece, column, tmp_path), piece
    for piece in ("--tensor-parallel", "/v1/images", "OPENAI_BLS_SPEED", "openai_bls.speed", "top_q", "no_folder/"):
        assert not exists(piece, "", tmp_path), piece


@pytest.mark.parametrize("row", OPTION_ROWS, ids=lambda row: cast(Row, row).names[0])
def test_verdicts_on_options(row: Row) -> None:
    theirs = {word for name in row.names for word in shlex.split(name) if word.startswith("--")}
    here = serve_options() if row.header[-1] == "serve" else build_options()
    with_dashes = {name.replace("_", "-") for name in theirs}
    if row.verdict.startswith("the same"):
        assert (with_dashes if "with dashes" in row.verdict else theirs) <= here
    elif row.verdict.startswith("not supported"):
        assert not with_dashes & here


def test_what_is_refused() -> None:
    """Tensors of the official contract, fields and paths of trtllm-serve."""
    (tensors,) = [row.names for row in rows_of(BACKEND, "Requests") if row.verdict.startswith("400")]
    for name in tensors:
        arrays = {"input_ids": np.array([[1]]), "request_output_len": np.array([[1]]), name: np.array([[2]])}
        with pytest.raises(InvalidRequestError) as caught:
            parse(arrays, engine_info(), True)
        assert caught.value.param == name
    refused = [row for row in rows_of(MIGRATE, "From trtllm-serve") if row.verdict.startswith("not supported: 4")]
    assert len(refused) == 2
    for name in [name for row in refused for name in row.names]:
        assert name not in routes()
        assert not is_field(name) or name in schema.UNSUPPORTED
