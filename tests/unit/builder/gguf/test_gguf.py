"""GGUF files: what transformers makes of them is what is built, and what it would leave out is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from openai_bls.builder.source.hub import fetch_config
from openai_bls.core.manifest import BuildError, load_manifest
from tests.unit.builder.builds import answer, refusal, run
from tests.unit.builder.gguf.gguf_support import transformers_model, write_gguf
from tests.unit.core_support import CHAT_TEMPLATE, tiny_tokenizer
from tests.unit.engines.engine_support import request

# Type of the matrices, and the type that holds all of the file's values.
TYPES = {"F16": torch.float16, "BF16": torch.float32, "Q4_0": torch.float32, "Q8_0": torch.float32}
TYPES |= dict.fromkeys(("Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"), torch.float32)


@pytest.mark.parametrize(("kind", "weights"), [*(("llama", weights) for weights in TYPES), ("qwen2", "Q4_0")])
def test_weights_are_those_of_transformers(kind: str, weights: str, tmp_path: Path, repository: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kind, weights)
    manifest, lines = run(file, repository)
    assert manifest.model_name == "tiny"
    assert any("holds each value exactly" in line for line in lines)
    written = load_file(repository / "tensorrt_llm" / "1" / "checkpoint" / "model.safetensors")
    expected = transformers_model(file, torch.float32).state_dict()
    assert expected.keys() - written.keys() == {"lm_head.weight"}
    for name, tensor in written.items():
        assert tensor.dtype == TYPES[weights]
        assert torch.equal(tensor.float(), expected[name]), name


@pytest.mark.parametrize(("kind", "weights"), [("llama", "F16"), ("qwen2", "Q4_K"), ("qwen3moe", "F16")])
def test_the_engine_s_tokens_are_those_of_transformers(
    kind: str, weights: str, tmp_path: Path, repository: Path
) -> None:
    """Experts, which transformers puts together itself, included."""
    file = write_gguf(tmp_path / "tiny.gguf", kind, weights)
    run(file, repository)
    model = transformers_model(file, torch.float32)
    prompt = torch.tensor([request(1).prompt_token_ids])
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert answer(repository) == expected[0, prompt.shape[1] :].tolist()


def test_tokenizer_and_template_come_along(tmp_path: Path, repository: Path) -> None:
    """With the end token that the template writes behind an answer, beside the file's own."""
    run(write_gguf(tmp_path / "tiny.gguf"), repository, engine="null")
    folder = repository / "preprocessing" / "1" / "tokenizer"
    made, tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json")), tiny_tokenizer()
    for text in ("Hi, é 你好\n", "<|im_start|>user\n<tool_call>{}</tool_call><|im_end|>"):
        assert made.encode(text).ids == tokenizer.encode(text).ids
    assert (folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|im_end|>")]


def test_float32_holds_every_value_of_a_half_type(tmp_path: Path, repository: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", weights="F16")
    lines = run(file, repository, dtype="float32")[1]
    assert any("as float32, which holds each value exactly" in line for line in lines)


def test_dtype_and_a_second_run(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    file = write_gguf(folder / "model.gguf", weights="Q4_0")
    manifest, lines = run(folder, repository, dtype="bfloat16")
    assert manifest.model_name == "downloaded"
    assert any("dequantized to bfloat16, rounded" in line for line in lines)
    written = load_file(repository / "tensorrt_llm" / "1" / "checkpoint" / "model.safetensors")
    expected = transformers_model(file, torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())
    assert "up to date" in run(folder, repository, dtype="bfloat16")[1][-1]
    write_gguf(folder / "other.gguf")
    assert "several GGUF files" in refusal(folder, repository)


def lfs_pointer(file: Path) -> None:
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n")


def truncated(file: Path) -> None:
    file.write_bytes(write_gguf(file).read_bytes()[:-1000])


def cut_in_the_header(file: Path) -> None:
    file.write_bytes(write_gguf(file).read_bytes()[:700])


def no_magic(file: Path) -> None:
    file.write_bytes(b"\0" + write_gguf(file).read_bytes()[1:])


def unknown(file: Path) -> None:
    write_gguf(file, "rwkv7")


def not_a_number(file: Path) -> None:
    """Scales of blocks that are no numbers."""
    content = write_gguf(file, weights="Q8_0").read_bytes()
    file.write_bytes(content[:-4000] + b"\xff" * 4000)


def without_a_tensor(file: Path) -> None:
    file.write_bytes(write_gguf(file).read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight"))


BROKEN = {
    lfs_pointer: "run `git lfs pull`",
    truncated: "cut short or damaged",
    cut_in_the_header: "cut short or damaged",
    no_magic: "does not begin with GGUF",
    unknown: "architecture rwkv7 is not supported",
    not_a_number: "has values that float32 does not hold",
    without_a_tensor: "weights that transformers' reader of GGUF files drops (blk.7.ffn_up.weight)",
    lambda file: write_gguf(file, extra="rope_freqs.weight"): "has RoPE scaling that transformers' reader",
    lambda file: write_gguf(file, fields={"llama.rope.scaling.type": "yarn"}): "has RoPE scaling (yarn)",
}


@pytest.mark.parametrize(("break_it", "reason"), BROKEN.items())
def test_broken_files(break_it: Callable[[Path], object], reason: str, tmp_path: Path, repository: Path) -> None:
    """Refused with one sentence; the last engine stays."""
    run(write_gguf(tmp_path / "good.gguf"), repository, engine="null")
    last = load_manifest(repository / "tensorrt_llm" / "1")
    file = tmp_path / "broken.gguf"
    break_it(file)
    assert reason in refusal(file, repository)
    assert load_manifest(repository / "tensorrt_llm" / "1") == last


def test_what_cannot_be_built_from(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny-00001-of-00002.gguf")
    assert "one of 2 parts: join them" in refusal(file, repository)
    file = file.rename(tmp_path / "tiny.gguf")
    assert "TensorRT-LLM does not read" in refusal(file, repository, engine="tensorrt_llm")
    with pytest.raises(BuildError, match="TensorRT-LLM does not read"):
        fetch_config(str(file))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "run `pip install gguf`" in refusal(file, repository)
