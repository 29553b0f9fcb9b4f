"""Broken folders, each through the real command line: one sentence, exit code 1, and the last good engine untouched."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.unit.builder.builds import build_main, run
from tests.unit.builder.checkpoint.breaks import (
    WEIGHTS,
    Break,
    adapter,
    bare_adapter,
    config,
    header,
    indexed,
    larger_vocabulary,
    linked,
    longer,
    no_index,
    no_tokenizer,
    parent,
    pickled,
    pointer,
    prefixed,
    quantization,
    renamed,
    tensors,
    truncated,
    unpickled,
    unsafe,
    wrapped,
    written,
)
from tests.unit.builder.repositories import contents, leftovers, make_repository

PULL = "is a git-LFS pointer, not the file: run `git lfs pull`"
BROKEN: dict[str, tuple[Break, tuple[str, ...]]] = {
    "weights are a pointer": (pointer(WEIGHTS), (f"/{WEIGHTS} {PULL}",)),
    "tokenizer.json is a pointer": (pointer("tokenizer.json"), (f"/tokenizer.json {PULL}",)),
    "tokenizer.model is a pointer": (renamed("tokenizer.json", "tokenizer.model"), (f"/tokenizer.model {PULL}",)),
    "config.json is a pointer": (pointer("config.json"), (f"/config.json {PULL}",)),
    "weights are cut off": (truncated, ("no whole safetensors file", "incomplete")),
    "weights are too long": (longer, ("no whole safetensors file",)),
    "the header is too large": (header, ("no whole safetensors file", "header too large")),
    "weights are empty": (written(WEIGHTS, ""), ("is empty",)),
    "tokenizer.json is empty": (written("tokenizer.json", ""), ("/tokenizer.json is empty",)),
    "a web page": (written("tokenizer_config.json", "<!DOCTYPE html><html>Log in</html>"), ("is a web page",)),
    "JSON is cut off": (
        written("generation_config.json", '{"eos_token_id": [1,'),
        ("cannot read", "generation_config"),
    ),
    "JSON of another kind": (written("special_tokens_map.json", "[]"), ("is not a JSON object",)),
    "a part is missing": (
        indexed(**{"model.extra.weight": "model-00002-of-00002.safetensors"}),
        ("model-00002-of-00002.safetensors is missing, though model.safetensors.index.json names it",),
    ),
    "a part lacks a tensor": (
        indexed(**{"model.extra.weight": "model-00001-of-00002.safetensors"}),
        ("model-00001-of-00002.safetensors has no tensor model.extra.weight",),
    ),
    "the index leads elsewhere": (indexed(**{"model.extra.weight": "../../x"}), ("names of files beside it",)),
    "the index is missing": (no_index, ("weights in parts", "model.safetensors.index.json is missing")),
    "tensors are missing": (
        tensors(lambda held: [held.pop(name) for name in list(held) if "layers.1" in name]),
        ("no file has model.layers.1.", " and 11 more of the model's weights"),
    ),
    "a pickled tensor is missing": (pickled, ("cannot be converted", "no file has model.norm.weight")),
    "a shape is another": (
        tensors(lambda held: held.update({"model.norm.weight": torch.ones(3)})),
        ("model.norm.weight has the shape [3], and config.json makes it [",),
    ),
    "NaN in one row of the embeddings": (
        tensors(lambda held: held["model.embed_tokens.weight"][400].fill_(math.nan)),
        ("are damaged, with numbers that are not finite", " in model.embed_tokens.weight: "),
    ),
    "infinity in two tensors": (
        tensors(lambda held: [held[f"model.layers.{n}.mlp.up_proj.weight"][0, 0].fill_(-math.inf) for n in (0, 1)]),
        (" in model.layers.0.mlp.up_proj.weight and 1 more: ",),
    ),
    "layers that config.json does not have": (
        config(num_hidden_layers=1, layer_types=["full_attention"]),
        ("have layers that config.json does not: number 1, counted from 0 (--force ",),
    ),
    "names behind a wrapper's": (
        prefixed("_orig_mod."),
        ("their names begin with '_orig_mod.'", "without that prefix"),
    ),
    "names behind peft's": (prefixed("base_model.model."), ("their names begin with 'base_model.model.'",)),
    "an adapter around layers": (wrapped, ("they hold a LoRA adapter (model.layers.", "merge_and_unload")),
    "an adapter beside layers": (
        tensors(lambda held: held.update({"model.layers.1.mlp.up_proj.lora_A.default.weight": torch.ones(2, 64)})),
        ("hold a LoRA adapter (model.layers.1.mlp.up_proj.lora_A.default.weight)", "merge_and_unload", "--force "),
    ),
    "a vocabulary larger than the embedding": (
        tensors(lambda held: held.update({name: held[name][:500].clone() for name in held if "embed" in name})),
        ("model.embed_tokens.weight has the shape [500, ", "config.json makes it [512, "),
    ),
    "INT8 without a word": (
        tensors(lambda held: held.update({"model.layers.0.mlp.up_proj.weight": torch.ones(96, 64, dtype=torch.int8)})),
        ("are quantized (I8, model.layers.0.mlp.up_proj.weight)", "has no quantization_config", "--force "),
    ),
    "a file of weights that is not there": (
        config(transformers_weights="mine.safetensors"),
        ("/config.json: transformers_weights is 'mine.safetensors', ",),
    ),
    "a number that is a string": (
        config(rms_norm_eps="1e-06"),
        ("/config.json: ", "'rms_norm_eps'", "expected float, got str"),
    ),
    "too few layer types": (
        config(layer_types=["full_attention"]),
        ("/config.json: ", "`num_hidden_layers` (2) must be equal to the number of `layer_types` (1)"),
    ),
    "an unknown layer type": (
        config(layer_types=["full_attention", "thinking_attention"]),
        ("/config.json: ", "`layer_types` entries must be in", "'thinking_attention'"),
    ),
    "a type that is no name": (
        config(dtype=None, torch_dtype="torch.float32"),
        ("/config.json: torch_dtype", "torch.float32"),
    ),
    "only an adapter": (adapter, ("is an adapter (PEFT) of org/base", "--lora-dir")),
    "an adapter without config.json": (bare_adapter, ("is an adapter (PEFT) of org/base",)),
    "no config.json": (parent, ("it has no config.json, but", "checkpoint-7 has one")),
    "tokenizer.json is no tokenizer": (written("tokenizer.json", '{"model": 3}'), ("cannot be loaded",)),
    "the tokenizer is larger": (
        larger_vocabulary,
        ("1 of its tokens (ids 512 to 512) are beyond the vocabulary of 512",),
    ),
    "own code": (config(auto_map={"AutoModelForCausalLM": "modeling.Model"}), ("--trust-remote-code",)),
    "no vocabulary": (config(vocab_size=None), ("/config.json: ", "'vocab_size'")),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), ("no weights",)),
    "no tokenizer": (no_tokenizer, ("no tokenizer.json",)),
    "an image model": (config(model_type="vit", architectures=["ViTModel"]), ("no causal language model",)),
    "an encoder": (
        config(model_type="roberta", architectures=["RobertaForMaskedLM"]),
        ("is an encoder", "RobertaForMaskedLM"),
    ),
    "an encoder-decoder": (
        config(model_type="t5", architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True),
        ("is an encoder-decoder model", "T5ForConditionalGeneration"),
    ),
    "an embedding model": (
        config(architectures=["Qwen2Model"]),
        ("without an output projection", "Qwen2Model", "--task embed"),
    ),
    "a reward model": (
        config(architectures=["Qwen2ForRewardModel"]),
        ("is a classifier or reward model", "--task classify, score or reward"),
    ),
    "a vision-language model": (
        config(model_type="qwen2_vl", architectures=["Qwen2VLForConditionalGeneration"]),
        ("is a vision-language model", "Qwen2VLForConditionalGeneration"),
    ),
    "AWQ": (
        quantization(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm"),
        ("is quantized (AutoAWQ)", "pip install gptqmodel", "build the original checkpoint"),
    ),
    "GPTQ": (quantization(quant_method="gptq", bits=4, group_size=128), ("is quantized (GPTQ", "pip install optimum")),
    "compressed-tensors": (
        quantization(quant_method="compressed-tensors", format="float-quantized", config_groups={}),
        ("is quantized (compressed-tensors", "pip install compressed-tensors", "--engine tensorrt_llm takes it"),
    ),
    "bitsandbytes": (quantization(quant_method="bitsandbytes", load_in_4bit=True), ("is quantized (bitsandbytes)",)),
    "torchao": (quantization(quant_method="torchao", quant_type="int8wo"), ("(torchao)", "pip install torchao")),
    "an unknown quantization": (quantization(quant_method="nobodys"), ("is quantized (nobodys)", "nobodys")),
    "FP8 over plain weights": (quantization(quant_method="fp8"), ("says that the weights are in FP8, and none",)),
    "ModelOpt": (
        written("hf_quant_config.json", '{"quantization": {"quant_algo": "FP8"}}'),
        ("is quantized (ModelOpt's FP8)", "hf_quant_config.json", "--engine tensorrt_llm takes it"),
    ),
    "GPTQ of an older tool": (
        written("quantize_config.json", '{"bits": 4}'),
        ("is quantized (GPTQ", "quantize_config.json"),
    ),
    "no layers": (config(num_hidden_layers=0), ("/config.json: num_hidden_layers is 0, ",)),
    "negative layers": (config(num_hidden_layers=-2, layer_types=None), ("/config.json: num_hidden_layers is -2, ",)),
    "no heads": (config(num_attention_heads=0), ("/config.json: num_attention_heads is 0, ",)),
    "negative heads": (config(num_key_value_heads=-1), ("/config.json: num_key_value_heads is -1, ",)),
    "a size that is a string": (config(hidden_size="64"), ('/config.json: hidden_size is "64", ',)),
    "a length that is a string": (
        config(max_position_embeddings="1024"),
        ('/config.json: max_position_embeddings is "1024", ',),
    ),
    "a negative size": (config(head_dim=-4), ("/config.json: head_dim is -4, ",)),
    "an end token outside the vocabulary": (
        written("generation_config.json", '{"eos_token_id": 512}'),
        ("/generation_config.json: eos_token_id is 512, ", "(0 to 511)", "--force "),
    ),
    "config.json links to itself": (linked("config.json"), ("/config.json is a link that leads nowhere",)),
    "the tokenizer links to itself": (linked("tokenizer.json"), ("/tokenizer.json is a link that leads nowhere",)),
    "the weights link to themselves": (linked(WEIGHTS), (f"/{WEIGHTS} is a link that leads nowhere",)),
    "a pickle with code": (unsafe, ("pytorch_model.bin has code to run (posix.system)", "safetensors")),
    "a pickle that is damaged": (unpickled, ("pytorch_model.bin is damaged",)),
}


@pytest.fixture(scope="module")
def built(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A repository with a good engine, and its bytes."""
    repository = make_repository(tmp_path_factory.mktemp("built") / "model_repository")
    assert build_main(["--model", str(checkpoint), "--model-repository", str(repository)]) == 0
    return repository, contents(repository)


@pytest.mark.parametrize("case", BROKEN)
def test_broken(
    case: str, built: tuple[Path, dict[str, bytes]], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, before = built
    spoil, told = BROKEN[case]
    spoil(source)
    capsys.readouterr()
    assert build_main(["--model", str(source), "--model-repository", str(repository)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("openai-bls build: ")
    assert printed.count("\n") == 1
    assert "weights_only" not in printed
    for part in told:
        assert part in printed
    assert contents(repository) == before
    assert not leftovers(repository)


def test_tensors_that_the_model_does_not_use(source: Path, repository: Path) -> None:
    extra = {"model.layers.9.foo": torch.full((2,), math.nan), "adapter.scale": torch.ones(1)}
    tensors(lambda held: held.update(extra))(source)
    _, lines = run(source, repository)
    assert "weights: the model does not use adapter.scale and 1 more" in lines


def test_whole_layers_that_are_left_out_on_demand(source: Path, repository: Path) -> None:
    config(num_hidden_layers=1, layer_types=["full_attention"])(source)
    _, lines = run(source, repository, force=True)
    (told,) = (line for line in lines if line.startswith("in spite of --force"))
    assert "number 1" in told


def test_end_tokens_that_are_left_out(source: Path, repository: Path) -> None:
    written("generation_config.json", '{"eos_token_id": [257, 512]}')(source)
    _, lines = run(source, repository)
    assert any("eos_token_id is [257,512]" in line for line in lines)
    written("generation_config.json", '{"eos_token_id": "257"}')(source)
    _, lines = run(source, repository, force=True)
    assert any('eos_token_id is "257"' in line for line in lines)
    written("generation_config.json", '{"eos_token_id": -1}')(source)
    _, lines = run(source, repository)
    assert not any("eos_token_id" in line for line in lines)


def test_weights_beside_the_weights(source: Path, repository: Path) -> None:
    torch.save({"model.norm.weight": torch.zeros(64)}, source / "pytorch_model.bin")
    _, lines = run(source, repository)
    assert f"weights: those of {WEIGHTS}; not read: pytorch_model.bin" in lines
    (source / "pytorch_model.bin").unlink()
    shutil.copy(source / WEIGHTS, source / "model-00001-of-00002.safetensors")
    _, lines = run(source, repository)
    assert f"weights: those of {WEIGHTS}; not read: model-00001-of-00002.safetensors" in lines


def test_weights_in_parts(source: Path, repository: Path) -> None:
    indexed()(source)
    _, lines = run(source, repository)
    assert f"weights 2/2: {WEIGHTS}.index.json" in lines
    assert not any("not read" in line for line in lines)


def test_plain_weights_under_a_quantization(source: Path, repository: Path) -> None:
    quantization(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")(source)
    _, lines = run(source, repository)
    (told,) = (line for line in lines if "quantization_config" in line)
    assert "fp8_block" in told


def test_paths_that_are_no_names(
    source: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin = source.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    (tmp_path / "loop").symlink_to("loop")
    elsewhere = tmp_path / os.fsdecode(b"d\xe9p\xf4t")
    for model, target, told in (
        (latin, repository, "is not UTF-8"),
        (tmp_path / "loop", repository, "loop is a link that leads nowhere"),
        (shutil.copytree(latin, tmp_path / "plain"), elsewhere, "is not UTF-8"),
    ):
        assert build_main(["--model", str(model), "--model-repository", str(target)]) == 2
        printed = capsys.readouterr().err
        assert told in printed
        assert printed.count("\n") == 1
    assert not elsewhere.exists()


def test_tokens_that_only_the_tokenizer_has(source: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Publishers leave added tokens in for which the model has no embeddings, as Gemma 3 1B does."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens([f"<extra_{number}>" for number in range(512 - tokenizer.get_vocab_size() + 1)])
    tokenizer.save(str(source / "tokenizer.json"))
    assert build_main(["--model", str(source), "--model-repository", str(repository)]) == 0
    assert "tokens that the model has not: <extra_" in capsys.readouterr().out
    shutil.rmtree(repository)
