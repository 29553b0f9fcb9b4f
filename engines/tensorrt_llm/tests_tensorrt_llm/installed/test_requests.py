"""Requests to TensorRT-LLM: every field by its name there, and what a version or a flow cannot honour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, LlmOptions, LoraAdapter, Sampling
from tests.paths import DEMO
from tests_tensorrt_llm.engine.fake_support import in_process
from tests_tensorrt_llm.installed.world import END, FLOWS, GREEDY, PLAIN, World, ask, asking


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_every_field_of_a_request(version: str, flow: str, world: World) -> None:
    sampling = Sampling(
        max_tokens=4,
        end_id=END,
        pad_id=3,
        stop_token_ids=(8, 4),
        bad_words=((11,), (12, 13)),
        min_tokens=2,
        params=SamplingParams(
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            min_p=0.1,
            seed=7,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={2: 1.0},
        ),
        vocab_size=20,
        logprobs=0 if flow == "tensorrt" else None,
    )
    with world.opened(version, flow) as (installed, llm):
        found = ask(installed, llm, sampling)
    (call,) = world.calls("generate_async")
    expected = {
        "max_tokens": 4,
        "end_id": END,
        "pad_id": 3,
        "ignore_eos": False,
        "stop_token_ids": [8, 4],
        "bad_token_ids": [11],
        "_bad_word_ids": [[12, 13]],
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "embedding_bias": "Tensor",
        "prompt_token_ids": [1, 2],
        "include_stop_str_in_output": False,
    } | ({"logprobs": 1} if flow == "tensorrt" else {})
    assert call == call | expected
    # Of the newest response alone, which has nothing but the end.
    assert len(found.logprobs) == (len(found.token_ids) if flow == "tensorrt" and version != "0.20.0" else 0)


CHANGES: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {2: 1.0},
    "bad_words": ((11,),),
    "min_tokens": 1,
    "temperature": 0.5,
}


@pytest.mark.parametrize("field", CHANGES)
def test_log_probabilities_of_the_models_own(field: str, world: World) -> None:
    """The C++ sampler has those that a token was drawn by."""
    sampling = asking(logprobs=0, **{field: CHANGES[field]})
    with world.opened() as (installed, llm):
        with pytest.raises(ValueError, match=f"^logprobs .*{field} "):
            ask(installed, llm, sampling)
        for temperature in (0.0, 1.0):
            found = ask(installed, llm, asking(logprobs=0, temperature=temperature))
            assert len(found.logprobs) == len(found.token_ids)
    for version, flow in (("1.2.1", "tensorrt"), ("1.3.0rc26", "pytorch")):
        with world.opened(version, flow) as (installed, llm):
            assert ask(installed, llm, sampling).logprobs


def test_nothing_ends_it_but_the_length(world: World) -> None:
    with world.opened() as (installed, llm):
        found = ask(installed, llm, replace(PLAIN, end_id=None, pad_id=None))
    assert (len(found.token_ids), found.finish_reason) == (8, "length")
    assert world.calls("generate_async")[0]["ignore_eos"] is True


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc26"])
def test_requests_without_a_seed_differ(version: str, world: World) -> None:
    with world.opened(version) as (installed, llm):
        for _ in range(3):
            ask(installed, llm, asking(temperature=1.0))
    assert len({call["seed"] for call in world.calls("generate_async")}) == 3
    assert {call["top_p"] for call in world.calls("generate_async")} == {1.0}


@pytest.mark.parametrize(
    ("version", "flow", "values", "told"),
    [
        ("1.2.1", "tensorrt", {"top_k": 1025, "temperature": 1.0, "vocab_size": 2000}, "^top_k: .* 1024"),
        ("1.2.1", "tensorrt", {"logprobs": 21}, "^logprobs: .* 20"),
        ("1.2.1", "pytorch", {"logprobs": 2}, r"^logprobs: .* 1 .*1\.2\.1"),
        ("1.2.1", "tensorrt", {"logit_bias": {20: 1.0}}, "^logit_bias: .* 20"),
        ("1.2.1", "tensorrt", {"grammar": Grammar("regex", "a")}, "^grammar: .*: none"),
    ],
)
def test_what_cannot_be_asked(version: str, flow: str, values: dict[str, Any], told: str, world: World) -> None:
    with world.opened(version, flow) as (installed, llm), pytest.raises(ValueError, match=told):
        ask(installed, llm, asking(**values))


def test_log_probabilities_need_gathered_logits(world: World) -> None:
    with world.opened("1.2.1", "tensorrt", gather_generation_logits=False) as (installed, llm):
        assert "logprobs" not in installed.supported(LlmOptions(DEMO, "tensorrt", 4, 32))
        with pytest.raises(ValueError, match=r"^logprobs: .*--gather-logits"):
            ask(installed, llm, replace(PLAIN, logprobs=1))


@pytest.mark.parametrize(
    ("version", "flow", "backend", "kinds"),
    [
        ("0.20.0", "tensorrt", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.2.1", "tensorrt", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.1.0", "pytorch", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.2.1", "pytorch", "xgrammar", ("json_schema", "regex", "ebnf", "structural_tag")),
        ("1.2.1", "pytorch", "llguidance", ("json_schema", "regex", "lark")),
    ],
)
def test_grammars(version: str, flow: str, backend: Any, kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Every kind that is offered holds the demo checkpoint to it; the others are refused."""
    texts = {
        "json_schema": '{"type": "boolean"}',
        "regex": "true|false",
        "ebnf": 'root ::= "true" | "false"',
        "lark": 'start: "true" | "false"',
        "structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", "value": "true"}}',
    }
    with in_process(version) as installed:
        model = DEMO
        if flow == "tensorrt":
            model = tmp_path / "engine"
            installed.build(BuildSpec(DEMO, model, tmp_path, 4, 64, 128, 256))
        options = LlmOptions(model, flow, 4, 128, guided_decoding_backend=backend, tokenizer=DEMO)  # type: ignore[arg-type]
        assert installed.grammar_kinds(options) == kinds
        llm = installed.open(options)
        sampling = Sampling(max_tokens=16, end_id=2, pad_id=0, params=GREEDY, vocab_size=3072)
        for kind, text in texts.items():
            asked = replace(sampling, grammar=Grammar(kind, text))  # type: ignore[arg-type]
            if kind not in kinds:
                with pytest.raises(ValueError, match=r"^grammar: "):
                    ask(installed, llm, asked)
                continue
            tokens = [token for token in ask(installed, llm, asked).token_ids if token != 2]
            assert text_of(tokens) in ("true", "false"), kind
        llm.shutdown()


def text_of(token_ids: list[int]) -> str:
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_file(str(DEMO / "tokenizer.json")).decode(token_ids)
    return text


@pytest.fixture
def adapter(tmp_path: Path) -> LoraAdapter:
    """Of the demo checkpoint: makes everything larger in one projection."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 64}))
    key = "base_model.model.model.layers.0.mlp.down_proj.lora_{}.weight"
    torch.manual_seed(1)
    save_file(
        {key.format("A"): torch.randn(2, 512), key.format("B"): torch.randn(256, 2)},
        folder / "adapter_model.safetensors",
    )
    return LoraAdapter("pirate", folder, 1)


@pytest.mark.parametrize(
    ("version", "flow"), [("0.20.0", "tensorrt"), ("1.2.1", "tensorrt"), ("1.0.0", "pytorch"), ("1.2.1", "pytorch")]
)
def test_adapters(version: str, flow: str, adapter: LoraAdapter, tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=6, end_id=None, pad_id=0, params=GREEDY, vocab_size=3072)
    with in_process(version) as installed:
        model = DEMO
        if flow == "tensorrt":
            model = tmp_path / "engine"
            spec = BuildSpec(DEMO, model, tmp_path, 4, 64, 128, 256, lora_dirs=(adapter.path,), max_lora_rank=2)
            installed.build(spec)
            built = json.loads((model / "config.json").read_text())["build_config"]
            assert built["lora_config"]["max_lora_rank"] == 2
            assert built["plugin_config"]["lora_plugin"]
        several = (adapter, LoraAdapter("other", adapter.path, 2))
        options = LlmOptions(model, flow, 4, 128, lora=several, max_loras=3, max_lora_rank=2)  # type: ignore[arg-type]
        if flow == "pytorch":
            with pytest.raises(AssertionError, match="lora target module"):
                installed.open(options)
        llm = installed.open(msgspec.structs.replace(options, lora_target_modules=("mlp_4h_to_h",)))
        plain, adapted = ask(installed, llm, sampling), ask(installed, llm, sampling, adapter)
        assert list(plain.token_ids) != list(adapted.token_ids)
        # One that comes later.
        assert ask(installed, llm, sampling, LoraAdapter("third", adapter.path, 3)).token_ids == adapted.token_ids
        llm.shutdown()
