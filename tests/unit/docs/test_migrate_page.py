"""docs/migrate.md: its commands are ones that their parsers take, what it names of ours exists, nothing is left out.

A table's last column is ours: every piece of code in it is looked up. Its other columns are other projects'.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from openai_bls import __main__ as cli
from openai_bls.api.chat import schema
from openai_bls.api.http.app import create_app
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.settings import ENV_PREFIX, OpenAiBlsSettings, SettingsError, TensorRtLlmSettings
from openai_bls.launcher.serve import ServeOptions, triton_flags
from openai_bls.launcher.smoke.command import build_parser as smoke_parser
from openai_bls.triton_models.config_writer import render
from openai_bls.triton_models.cpp_backend import CppSettings
from openai_bls.triton_models.render_configs import configure
from openai_bls.triton_models.tensorrt_llm.requests import parse
from openai_bls.triton_models.tensors import ENSEMBLE, MODELS
from tests.contracts.tables import NEWEST, VERSIONS, OfficialModel, official
from tests.unit.core_support import engine_info

ROOT = Path(__file__).parents[3]
DOC = ROOT / "docs" / "migrate.md"
TEXT = DOC.read_text(encoding="utf-8")

# What fill_template.py also fills in or has filled in: not keys of `parameters` in the newest templates.
TEMPLATE_ONLY = {
    "fill_template.py: tensorrt_llm": {
        "triton_backend", "triton_max_batch_size", "decoupled_mode", "max_queue_delay_microseconds", "max_queue_size",
        "engine_dir", "batching_strategy", "encoder_engine_dir", "logits_datatype", "encoder_input_features_data_type",
        "recv_poll_period_ms", "enable_trt_overlap", "max_num_sequences",
    },
    "fill_template.py: the other models": {
        "triton_max_batch_size", "preprocessing_instance_count", "postprocessing_instance_count", "bls_instance_count",
        "tokenizer_type", "engine_dir", "visual_model_path", "decoupled_mode", "logits_datatype", "accumulate_tokens",
        "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name",
    },
}  # fmt: skip
TEMPLATES: dict[str, tuple[OfficialModel, ...]] = {
    "fill_template.py: tensorrt_llm": ("tensorrt_llm",),
    "fill_template.py: the other models": ("preprocessing", "postprocessing", "ensemble"),
}
QUEUE = {"max_queue_delay_microseconds", "max_queue_size"}
# Pieces of code in our columns that are nothing of ours: of NVIDIA's client, of requests, and plain words.
FOREIGN = {"--streaming", "400", "501", "generate", "infer", "true", "false", "[batch, beams]"}


class Row(NamedTuple):
    """One row of a table."""

    section: str
    header: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def theirs(self) -> list[str]:
        """Pieces of code in the first column."""
        return code(self.cells[0])

    @property
    def ours(self) -> str:
        """The last column."""
        return self.cells[-1]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def read_rows() -> list[Row]:
    rows: list[Row] = []
    section, header = "", tuple[str, ...]()
    for line in re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL).splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        cells = tuple(cell.strip() for cell in line.strip("|").split("|")) if line.startswith("|") else ()
        if not cells:
            header = ()
        elif not header:
            header = cells
        elif set(line) - set("|-"):
            assert len(cells) == len(header), line
            rows.append(Row(section, header, cells))
    return rows


ROWS = read_rows()
BLOCKS = [
    line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line.strip()
]
INLINE = [piece for row in ROWS for piece in code(row.ours) if piece.startswith("python ")]
PIECES = list(dict.fromkeys((row.header[-1], piece) for row in ROWS for piece in code(row.ours)))


OPTION_ROWS = [row for row in ROWS if any(name.startswith("--") for name in row.theirs)]


def rows_of(section: str) -> list[Row]:
    found = [row for row in ROWS if row.section == section]
    assert found, section
    return found


@cache
def script(name: str) -> ModuleType:
    """A program of build/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"build_{name}", ROOT / "build" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


@cache
def build_options() -> set[str]:
    return options_of(script("engine")._parser())


@cache
def serve_options() -> set[str]:
    commands = next(action for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return options_of(commands.choices["serve"])


@cache
def paths() -> set[str]:
    """Of the /v1 application; nothing is asked of it."""
    return {cast(Any, route).path for route in create_app(cast(Any, None), cast(Any, None)).routes}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model repository as it is committed, and what the commands say lies at /path/to."""
    for model in MODELS.values():
        folder = tmp_path / "model_repository" / model.name
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").write_text(render(model))
    for name in ("checkpoint", "dataset", "adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    return tmp_path


# --- commands


def take_build(arguments: list[str], place: Path) -> None:
    here = [re.sub(r"/path/to\b", str(place), word) for word in arguments]
    known = [] if "--engine" in here else ["--engine", "tensorrt_llm"]
    script("engine").parse([*here, *known])


def take_launcher(arguments: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the start of a server is done."""
    started: list[ServeOptions] = []

    def serve(options: ServeOptions) -> int:
        started.append(options)
        return 0

    monkeypatch.setattr(cli, "serve", serve)
    monkeypatch.chdir(place)
    monkeypatch.delenv("OPENAI_BLS_MODEL_REPOSITORY", raising=False)
    assert cli.main(arguments) == 0
    for options in started:
        triton_flags(options)
    for change in [word for flag, word in itertools.pairwise(arguments) if flag == "--set"]:
        model, _, setting = change.partition(".")
        name, _, value = setting.partition("=")
        written = (place / "model_repository" / model / "config.pbtxt").read_text()
        assert f'key: "{name}" value {{ string_value: "{value}" }}' in written


def take(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        assert is_variable(words.pop(0).partition("=")[0])
    programs: dict[tuple[str, ...], Callable[[list[str]], object]] = {
        ("python", "build/engine.py"): lambda arguments: take_build(arguments, place),
        ("python", "build/verify.py"): script("verify").parse,
        ("python", "build/smoke.py"): smoke_parser(place).parse_args,
        ("python", "-m", "openai_bls"): lambda arguments: take_launcher(arguments, place, monkeypatch),
    }
    for program, parser in programs.items():
        if tuple(words[: len(program)]) == program:
            parser(words[len(program) :])
            return
    raise AssertionError(f"no program of ours: {command}")


@pytest.mark.parametrize("command", list(dict.fromkeys([*BLOCKS, *INLINE])))
def test_every_command_is_understood(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(command, place, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "python build/engine.py --model m --tp 2",
        "python build/engine.py --model m --quant int3",
        "python build/verify.py --speed",
        "python build/smoke.py --speed",
        "python -m openai_bls serve --world-sizes 2",
        "python -m openai_bls render --set tensorrt_llm.speed=2",
        "python tools/fill_template.py -i config.pbtxt",
        "OPENAI_BLS_SPEED=2 python -m openai_bls serve",
    ],
)
def test_a_command_that_is_not_understood_would_be_noticed(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((SystemExit, EngineLoadError, AssertionError)):
        take(command, place, monkeypatch)


# --- names


def is_variable(name: str) -> bool:
    return name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() in OpenAiBlsSettings.__struct_fields__


def is_setting(text: str, place: Path) -> bool:
    """Whether `render --set` takes it; of one without a value, whether there is a value for it."""
    repository = place / "model_repository"
    for change in [text] if "=" in text else [f"{text}={value}" for value in ("1", "0.5", "true", "auto")]:
        try:
            configure(repository, [change])
        except SettingsError:
            continue
        return True
    return False


def is_option(text: str, where: str, place: Path) -> bool:
    """Whether the program that the column is of, or any of ours, has all that is in `text`."""
    known = {"build/engine.py": build_options(), "serve": serve_options() | {"--backend"}}
    words, _, _ = text.partition(" -- ")
    given = shlex.split(words)
    if not {word for word in given if word.startswith("--")} <= known.get(where, build_options() | serve_options()):
        return False
    if len(given) == 1:
        return True
    if given[0] in serve_options():
        cli.build_parser().parse_args(["serve", *given])
        return True
    backend = ["--backend", "cpp"] if given[0] == "--cpp-parameter" else []
    take_build([*(word.replace("=path", f"={place / 'adapter'}") for word in given), *backend], place)
    return True


def is_field(name: str) -> bool:
    return name in schema.ChatCompletionRequest.__struct_fields__ or name in schema.CompletionRequest.__struct_fields__


def is_tensor(name: str) -> bool:
    return any(name in {t.name for t in (*model.inputs, *model.outputs)} for model in MODELS.values())


def exists(text: str, where: str, place: Path) -> bool:
    if text.startswith("--"):
        return is_option(text, where, place)
    if text.startswith(ENV_PREFIX):
        return is_variable(text)
    if text.startswith("/"):
        # All of them, or one.
        return text == "/v1" or text in paths()
    if text.partition(".")[0] in MODELS and "." in text:
        return is_setting(text, place)
    return (
        is_field(text)
        or is_tensor(text)
        or text in MODELS
        or text in ("serve", "json_schema", "finish_reason")
        or (text.endswith("/") and (ROOT / text).is_dir())
    )


@pytest.mark.parametrize(("where", "text"), [piece for piece in PIECES if not piece[1].startswith("python ")])
def test_what_is_named_of_ours_exists(where: str, text: str, place: Path) -> None:
    assert text in FOREIGN or exists(text, where, place)


@pytest.mark.parametrize(
    "text",
    [
        "--tensor-parallel", "--quant int3", "--mode follower", "/v1/rerank", "OPENAI_BLS_SPEED", "openai_bls.speed",
        "tensorrt_llm.kv_cache_free_gpu_mem_fraction=2", "ensemble.instances", "top_q", "models_repository/",
    ],
)  # fmt: skip
def test_what_does_not_exist_would_be_noticed(text: str, place: Path) -> None:
    with contextlib.suppress(SystemExit, EngineLoadError):
        assert not exists(text, "here", place)


def test_settings_in_prose_exist(place: Path) -> None:
    prose = re.sub(r"```.*?```|^\|.*$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    for piece in code(prose):
        if piece.startswith("--") or (piece.partition(".")[0] in MODELS and "." in piece):
            assert exists(piece, "here", place), piece


# --- nothing is left out, and the verdicts are right


def settings_of(row: Row) -> list[str]:
    """The keys in config.pbtxt of what fill_template.py calls otherwise."""
    return [key or name for name, key in re.findall(r"`(\w+)`(?: \(`(\w+)`\))?", row.cells[0])]


@pytest.mark.parametrize("section", TEMPLATES)
def test_every_template_parameter_has_its_row(section: str) -> None:
    named = [name for row in rows_of(section) for name in row.theirs]
    keys = {key for model in TEMPLATES[section] for version in VERSIONS for key in official(model, version).parameters}
    assert len(named) == len(set(named))
    assert set(named) == keys | TEMPLATE_ONLY[section]


def test_every_setting_of_the_engine_has_its_row() -> None:
    named = {name for row in rows_of("fill_template.py: tensorrt_llm") for name in settings_of(row)}
    assert set(CppSettings.__struct_fields__) <= named


@pytest.mark.parametrize("row", rows_of("fill_template.py: tensorrt_llm"), ids=lambda row: cast(Row, row).theirs[0])
def test_verdicts_on_template_parameters(row: Row) -> None:
    """The same is the same name there and here, for the backend that is said."""
    both, cpp = set(TensorRtLlmSettings.__struct_fields__), set(CppSettings.__struct_fields__)
    names = set(settings_of(row))
    if row.ours.startswith("the same"):
        only_cpp = "with `--backend cpp`" in row.ours.partition(".")[0]
        assert names <= (cpp - both | QUEUE if only_cpp else both)
        if "with dashes" in row.ours:
            assert {f"--{name.replace('_', '-')}" for name in names} <= build_options()
    elif row.ours.startswith("not supported"):
        assert not names & cpp
    else:
        # Written by the build, or no setting at all.
        assert not names & both
        assert row.ours.startswith("not needed") or code(row.ours)


@pytest.mark.parametrize("row", OPTION_ROWS, ids=lambda row: cast(Row, row).theirs[0])
def test_verdicts_on_options(row: Row) -> None:
    theirs = {word for name in row.theirs for word in shlex.split(name) if word.startswith("--")}
    here = serve_options() if row.header[-1] == "serve" else build_options()
    with_dashes = {name.replace("_", "-") for name in theirs}
    if row.ours.startswith("the same"):
        assert (with_dashes if "with dashes" in row.ours else theirs) <= here
    elif row.ours.startswith("not supported"):
        assert not with_dashes & here


def test_requests_that_are_refused() -> None:
    rows = [row for row in rows_of("Requests") if row.ours.startswith("400")]
    (names,) = [row.theirs for row in rows]
    for name in names:
        arrays = {"input_ids": np.array([[1]]), "request_output_len": np.array([[1]]), name: np.array([[2]])}
        with pytest.raises(InvalidRequestError) as caught:
            parse(arrays, engine_info(), True)
        assert caught.value.param == name


def test_fields_and_paths_that_are_refused() -> None:
    refused = [row for row in rows_of("From trtllm-serve") if row.ours.startswith("not supported: 4")]
    assert len(refused) == 2
    for name in [name for row in refused for name in row.theirs]:
        assert name not in paths()
        assert not is_field(name) or name in schema.UNSUPPORTED


def test_what_the_ensembles_do_not_declare() -> None:
    listed = re.search(r"The ensembles have no (.*?)\. Over gRPC", TEXT, re.DOTALL)
    assert listed is not None
    declared = {tensor.name for tensor in ENSEMBLE.inputs}
    assert set(code(listed[1])) == {tensor.name for tensor in official("ensemble", NEWEST).inputs} - declared


# --- links


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT))))
def test_links(link: str) -> None:
    path, _, anchor = link.partition("#")
    page = (DOC.parent / path).resolve() if path else DOC
    assert page.is_file()
    assert not anchor or anchor in anchors(page)
