"""The table of model families, row by row, and models.md and quantization.md of docs/, which show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from openai_bls.builder.checkpoint.quantized import CHECKPOINT_FORMS
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.gpus import find_gpu
from openai_bls_tensorrt_llm.recipe.memory import Estimate, PlannedEngine, estimate
from openai_bls_tensorrt_llm.recipe.model.families import (
    FAMILIES,
    Family,
    Windows,
    command,
    family_of,
    note,
    quant_note,
    refusal,
    written,
)
from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape, shape_of
from openai_bls_tensorrt_llm.recipe.plan.checks import check
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT, QUANTIZATIONS
from tests.paths import ROOT
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.published_models import NAMES

DOCS = ROOT / "engines" / "tensorrt_llm" / "docs"
DOC = "\n## \n".join((DOCS / page).read_text(encoding="utf-8") for page in ("models.md", "quantization.md"))

# Which file in published/ stands for which models of the table.
FILES = {
    "Llama 2": "Llama-2-7b-hf",
    "Llama 3": "Llama-3.1-8B",
    "CodeLlama": "CodeLlama-13b-hf",
    "Yi": "Yi-34B",
    "Mistral": "Mistral-7B-v0.1",
    "Mixtral": "Mixtral-8x7B-v0.1",
    "Qwen1.5": "Qwen1.5-14B-Chat",
    "Qwen2": "Qwen2-0.5B",
    "Qwen2.5": "Qwen2.5-7B-Instruct",
    "Qwen1.5-MoE, Qwen2-57B-A14B": "Qwen1.5-MoE-A2.7B",
    "Qwen3": "Qwen3-8B",
    "Qwen3 with experts": "Qwen3-30B-A3B",
    "Qwen (the first)": "Qwen-7B-Chat",
    "Baichuan2": "Baichuan2-13B-Chat",
    "ChatGLM2, ChatGLM3": "chatglm3-6b",
    "GLM-4 (with its own code)": "glm-4-9b-chat",
    "GLM-4 (as transformers has it)": "glm-4-9b-chat-hf",
    "Phi-3, Phi-3.5, Phi-4": "Phi-3-mini-4k-instruct",
    "Gemma, Gemma 2": "gemma-2-9b",
    "Gemma 3 (text)": "gemma-3-1b-it",
}
ROWS = [(family, model) for family in FAMILIES for model in family.models.items()]
IDS = [name for _, (name, _) in ROWS]


def refused(name: str, flow: str, version: tuple[int, int], *, trust: bool = True) -> str | None:
    config = published_models.config(name)
    return refusal(config, flow, version, trust_remote_code=trust)  # type: ignore[arg-type]


@pytest.mark.parametrize(("family", "model"), ROWS, ids=IDS)
def test_each_row_from_config_to_plan(family: Family, model: tuple[str, str]) -> None:
    """What the row says is what becomes of a published model: which family, refused or not, and a plan that fits."""
    config = published_models.config(FILES[model[0]])
    shape = shape_of(config)
    assert family_of(config) is family
    for flow, since in (("tensorrt", family.tensorrt_since), ("pytorch", family.pytorch_since)):
        taken = refused(FILES[model[0]], flow, (1, 2)) is None
        assert taken == (since is not None)
        if since is None:
            continue
        assert refused(FILES[model[0]], flow, since) is None
        before = (since[0], since[1] - 1) if since[1] else (since[0] - 1, 21)
        assert f"need TensorRT-LLM {written(since)} or later" in str(refused(FILES[model[0]], flow, before))
    found = fits(shape, PlannedEngine(gpu=find_gpu("B200"), max_seq_len=2048))
    for quant in family.quants:
        gpu = find_gpu("B200" if quant == "nvfp4" else "H200")
        assert fits(shape, PlannedEngine(gpu=gpu, quant=quant)).weights < found.weights


def fits(shape: ModelShape, engine: PlannedEngine) -> Estimate:
    found = estimate(shape, engine)
    assert check(shape, engine, found).problems == ()
    return found


def test_every_file_has_a_family_and_no_architecture_two() -> None:
    assert set(FILES) == set(IDS)
    assert all(family_of(published_models.config(name)) for name in NAMES)
    architectures = [name for family in FAMILIES for name in family.architectures]
    assert len(architectures) == len(set(architectures))
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_rows_agree_with_themselves(family: Family) -> None:
    """A class means a release; quantizations mean a class; each family runs somewhere; notes are clauses."""
    assert (family.tensorrt_class is None) == (family.tensorrt_since is None)
    assert not family.quants or family.tensorrt_class
    assert set(family.quants) <= set(BUILT)
    assert not family.trust_remote_code or family.tensorrt_class
    assert family.models
    assert not any(note.endswith(".") for note in family.notes)
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    assert all((name in known) != family.trust_remote_code for name in family.architectures)


@pytest.mark.parametrize(
    ("name", "own_code"),
    [("Qwen-7B-Chat", True), ("chatglm3-6b", True), ("Qwen2.5-7B-Instruct", False), ("Phi-3-mini-4k-instruct", False)],
)
def test_own_code_needs_the_flag(name: str, own_code: bool) -> None:
    """Phi-3 brings code as well, but all engines have their own for it."""
    assert ("--trust-remote-code" in str(refused(name, "tensorrt", (1, 2), trust=False))) == own_code
    assert refused(name, "tensorrt", (1, 2)) is None


@pytest.mark.parametrize(
    ("name", "flow", "version", "says"),
    [
        ("Qwen3-8B", "tensorrt", (0, 20), "use a newer one, or --flow pytorch"),
        ("Phi-3-mini-4k-instruct", "pytorch", (1, 0), "use a newer one, or --flow tensorrt"),
        ("Llama-2-7b-hf", "tensorrt", (1, 3), "no engines any more: use a release before 1.3, or --flow pytorch"),
        ("gemma-7b", "tensorrt", (1, 4), "use a release before 1.3, or --engine transformers"),
        ("gemma-7b", "pytorch", (1, 2), "no Gemma models in --flow pytorch: use --flow tensorrt"),
        ("gemma-7b", "pytorch", (1, 3), "use --engine transformers"),
        ("chatglm3-6b", "pytorch", (1, 2), "no ChatGLM models in --flow pytorch: use --flow tensorrt"),
        ("chatglm3-6b", "pytorch", (1, 3), "use TensorRT-LLM before 1.3 with --flow tensorrt"),
        ("glm-4-9b-chat-hf", "tensorrt", (1, 2), "no GLM models in --flow tensorrt: use --engine transformers"),
    ],
)
def test_sentences(name: str, flow: str, version: tuple[int, int], says: str) -> None:
    assert says in str(refused(name, flow, version))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "BloomForCausalLM is no model family known here"),
        ({"architectures": []}, "an architecture that config.json does not name is no"),
        ({}, "known are Llama 2, Llama 3, CodeLlama, Yi, Mistral"),
        ({"architectures": "LlamaForCausalLM"}, "does not name"),
    ],
)
def test_unknown_models(config: dict[str, Any], says: str) -> None:
    assert family_of(config) is None
    text = str(refusal(config, "tensorrt", (1, 2), trust_remote_code=True))
    assert says in text
    assert "--engine transformers" in text


@pytest.mark.parametrize(
    ("architecture", "flow", "installed", "says"),
    [
        ("DeepseekV3ForCausalLM", "pytorch", {"pytorch": {"DeepseekV3ForCausalLM"}}, None),
        ("DeepseekV3ForCausalLM", "pytorch", None, None),
        ("DeepseekV3ForCausalLM", "pytorch", {"pytorch": {"GptOssForCausalLM"}}, "use --engine transformers"),
        ("DeepseekV3ForCausalLM", "tensorrt", None, "is not installed here to be asked"),
        ("DeepseekV3ForCausalLM", "tensorrt", {"tensorrt": set()}, "does not tell its models"),
        (
            "DeepseekV3ForCausalLM",
            "tensorrt",
            {"tensorrt": {"LlamaForCausalLM"}, "pytorch": {"DeepseekV3ForCausalLM"}},
            "the installed TensorRT-LLM 1.0 has no DeepseekV3ForCausalLM in --flow tensorrt: use --flow pytorch",
        ),
        # What the table says is less than what the installed one has, and more than that it has it not.
        ("Phi3ForCausalLM", "pytorch", {"pytorch": {"Phi3ForCausalLM"}}, None),
        ("Phi3ForCausalLM", "pytorch", {"pytorch": {"LlamaForCausalLM"}}, "need TensorRT-LLM 1.1 or later in --flow"),
        ("QWenLMHeadModel", "tensorrt", {"tensorrt": {"QWenLMHeadModel"}}, "pass --trust-remote-code if you trust it"),
    ],
)
def test_the_installed_version_decides(
    architecture: str, flow: Flow, installed: Mapping[Flow, frozenset[str]] | None, says: str | None
) -> None:
    config = {"architectures": [architecture]}
    found = refusal(config, flow, (1, 0), trust_remote_code=False, installed=installed)
    assert found is None if says is None else says in str(found)


def test_notes_on_models_outside_the_table() -> None:
    config = {"architectures": ["DeepseekV3ForCausalLM"]}
    assert "was not asked whether it has it" in str(note(config, "pytorch", None, None))
    has: dict[Flow, frozenset[str]] = {"pytorch": frozenset(config["architectures"])}
    assert "the installed TensorRT-LLM has it" in str(note(config, "pytorch", None, has))


def test_the_first_chatglm_is_another_model() -> None:
    config = published_models.config("chatglm3-6b") | {"inner_hidden_size": 16384}
    assert "use ChatGLM2, ChatGLM3 or GLM-4" in str(refusal(config, "tensorrt", (1, 2), trust_remote_code=True))


def test_quantizations_that_are_not_listed() -> None:
    qwen3 = family_of(published_models.config("Qwen3-8B"))
    gemma3 = family_of(published_models.config("gemma-3-1b-it"))
    assert qwen3 is not None
    assert gemma3 is not None
    assert quant_note(qwen3, "fp8") is None
    assert "does not list awq for Qwen3 (it lists fp8)" in str(quant_note(qwen3, "awq"))
    assert "(it lists none)" in str(quant_note(gemma3, "fp8"))


# --- docs/models.md, docs/quantization.md


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(text: str) -> list[list[str]]:
    """Cells of a table's rows, without its heading."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows[1:] if set("".join(row)) != {"-"}]


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_the_documented_table() -> None:
    def since(version: tuple[int, int] | None) -> str:
        return written(version) if version else "no"

    assert table(section("The table")) == [
        [
            model[0],
            code(family.architectures),
            since(family.tensorrt_since),
            code((family.tensorrt_class,)) if family.tensorrt_class else "",
            since(family.pytorch_since),
            "no" if family.trust_remote_code else "yes",
            "yes" if family.trust_remote_code else "no",
            f"`{model[1]}`",
        ]
        for family, model in ROWS
    ]


def test_the_documented_commands() -> None:
    documented = section("Commands").split("```bash\n")[1].split("```")[0].splitlines()
    commands = {command(family, model[1]): family.trust_remote_code for family, model in ROWS}
    assert [commands[line] for line in documented] == [False, True]
    assert all(("--trust-remote-code" in line) == trusted for line, trusted in commands.items())


def test_the_documented_quantizations() -> None:
    text = section("Quantizations of engines")
    rows = table(text)
    assert [row[0] for row in rows] == [f"`{name}`" for name in BUILT]
    for row, name in zip(rows, BUILT, strict=True):
        how = QUANTIZATIONS[name]
        assert row[1] == ("8 bits" if how.bytes_per_weight >= 1 else "4 bits")
        capability = tuple(int(part) for part in row[2].split("."))
        first = {None: (7, 5), "int8": (7, 5), "fp8": (8, 9), "nvfp4": (10, 0)}[how.number_format]
        assert capability == first
        assert row[3] == ("no" if how.not_on_blackwell else "yes")
        assert ("calibrates" in row[4]) == how.calibrates
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert listed == [f"- `{name}`: {how.refusal}." for name, how in QUANTIZATIONS.items() if how.refusal]


def test_the_documented_windows() -> None:
    words: dict[Windows | None, str] = {
        None: "",
        "setting": "written into config.pbtxt",
        "own": "the model's own code",
        "none": "sequences end at the window",
    }
    assert table(section("Attention windows and lengths")) == [
        [family.name, *(words[family.windows.get(flow)] for flow in get_args(Flow))]
        for family in FAMILIES
        if family.windows
    ]


def test_the_documented_forms_of_checkpoints() -> None:
    rows = table(section("Checkpoints that are quantized already"))
    assert [[row[0], *row[2:]] for row in rows] == [
        [
            form.title,
            "yes" if form.tensorrt else "no",
            written(form.pytorch_since) if form.pytorch_since else "no",
            f"`--quant {form.instead}`" if form.instead else "",
        ]
        for form in CHECKPOINT_FORMS.values()
    ]
    for row, name in zip(rows, CHECKPOINT_FORMS, strict=True):
        assert name.removeprefix("ModelOpt ").removesuffix("_block") in row[1]
        assert ("quant_algo" in row[1]) == name.startswith("ModelOpt ")


def test_the_documented_notes() -> None:
    lines = [line for line in section("What to know").splitlines() if line]
    assert lines == [f"- **{family.name}**: {note}." for family in FAMILIES for note in family.notes]
