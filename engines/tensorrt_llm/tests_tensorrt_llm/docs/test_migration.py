"""The guide from the official backend's model repository, held against the recorded templates of all versions."""

from __future__ import annotations

import re
from typing import cast

import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.tensors.models import ENSEMBLE, MODELS, TENSORRT_LLM_BLS
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings
from tests.unit.docs import pages
from tests.unit.docs.pages import Row, build_options, code, rows_of
from tests_tensorrt_llm.contracts.tables import NEWEST, VERSIONS, OfficialModel, official

BACKEND = "docs/guides/migrate-tensorrtllm-backend.md"
TEMPLATES: dict[str, tuple[OfficialModel, ...]] = {
    "fill_template.py: tensorrt_llm": ("tensorrt_llm",),
    "fill_template.py: the other models": ("preprocessing", "postprocessing", "ensemble"),
}
QUEUE = {"max_queue_delay_microseconds", "max_queue_size"}
SETTING_ROWS = rows_of(BACKEND, "fill_template.py: tensorrt_llm")


def settings_of(row: Row) -> set[str]:
    """The keys in config.pbtxt of what fill_template.py calls otherwise."""
    return {key or name for name, key in re.findall(r"`(\w+)`(?: \(`(\w+)`\))?", row.cells[0])}


@pytest.mark.parametrize("section", TEMPLATES)
def test_every_template_parameter_has_its_row(section: str) -> None:
    named = [name for row in rows_of(BACKEND, section) for name in row.names]
    keys = {key for model in TEMPLATES[section] for version in VERSIONS for key in official(model, version).parameters}
    assert len(named) == len(set(named))
    assert keys <= set(named)
    ours = {"lora_watch_dir", "verify_weights"}
    assert section != "fill_template.py: tensorrt_llm" or set(CppSettings.__struct_fields__) - ours <= set().union(
        *map(settings_of, SETTING_ROWS)
    )


@pytest.mark.parametrize("row", SETTING_ROWS, ids=lambda row: cast(Row, row).names[0])
def test_verdicts_on_template_parameters(row: Row) -> None:
    """The same is the same name there and here, for the backend that is said."""
    both, cpp = set(EngineSettings.__struct_fields__), set(CppSettings.__struct_fields__)
    names = settings_of(row)
    if row.verdict.startswith("the same"):
        only_cpp = "with `--backend cpp`" in row.verdict.partition(".")[0]
        assert names <= (cpp - both | QUEUE if only_cpp else both)
        if "with dashes" in row.verdict:
            assert {f"--{name.replace('_', '-')}" for name in names} <= build_options()
    elif row.verdict.startswith("not supported"):
        assert not names & cpp
    else:
        assert not names & both
        assert row.verdict.startswith("not needed") or code(row.verdict)


def test_tensors_of_the_text_models() -> None:
    """Every official one exists or is listed as absent, and none that is listed exists."""
    text = pages.text(BACKEND)
    listed = [
        set(code(found))
        for found in re.findall(
            r"Inputs that .*? do not have: (.*?);\s`ensemble` has no (.*?) either\..*?On no model: (.*?)\.",
            " ".join(text.split()),
            re.DOTALL,
        )[0]
    ]
    of_neither, of_ensemble, outputs = listed
    inputs = {tensor.name for tensor in ENSEMBLE.inputs}
    assert not of_neither & (inputs | {tensor.name for tensor in TENSORRT_LLM_BLS.inputs})
    assert {tensor.name for tensor in official("ensemble", NEWEST).inputs} - inputs <= of_neither | of_ensemble
    assert not of_ensemble & inputs
    ours = {tensor.name for model in MODELS.values() for tensor in model.outputs}
    assert not outputs & ours
    names = {tensor.name for model in ("ensemble", "tensorrt_llm") for tensor in official(model, NEWEST).outputs}
    assert names <= ours | outputs
    quick_start = text.partition("The quick start of `all_models/llmapi`")[2].partition("```bash")[0]
    of_llmapi = {name for name in code(quick_start) if name.startswith(("sampling_param_", "return_"))}
    known = {tensor.name for tensor in TENSORRT_LLM_BLS.inputs}
    assert of_llmapi <= known
    assert {name for name in known if name.startswith("sampling_param_")} <= of_llmapi
