"""The placed tokenizer makes the token ids that the checkpoint's own `AutoTokenizer` makes, in every combination."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.tokenizer.placing import place_tokenizer
from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.manifest import BuildError
from openai_bls.output.detokenizer import factory
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from tests.unit.builder.tokenizer.checkpoints import byte_level, metaspace, write

CLASSES = (
    None, "LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer",
    "GemmaTokenizer", "CohereTokenizer",
)  # fmt: skip
MODEL_TYPES = (
    "apertus", "arcee", "baichuan", "bloom", "cohere", "cohere2", "dbrx", "deepseek_v2", "deepseek_v3", "ernie4_5",
    "exaone4", "falcon", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "gpt2", "gpt_neox",
    "gpt_oss", "granite", "granitemoe", "hunyuan_v1_dense", "internlm3", "jamba", "lfm2", "llama", "llama4", "llava",
    "minimax_m2", "mistral", "mistral3", "mixtral", "nemotron", "olmo2", "opt", "phi", "phi3", "phimoe", "qwen2",
    "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
    "unknown",
)  # fmt: skip
CHAT = [{"role": "user", "content": " Hi there"}, {"role": "assistant", "content": "Yes\n"}]


def _distinct_types() -> Iterator[str]:
    """Model types of which `AutoTokenizer` knows different things."""
    known: set[Any] = set()
    for name in MODEL_TYPES:
        registered = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(name)
        about = (registered, name in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS)
        if about not in known:
            known.add(about)
            yield name


def _ids(tokenizer: Any) -> list[list[int]]:
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False)
    return [*tokenizer([*SAMPLES, "a<|end|> b"])["input_ids"], tokenizer.encode(rendered, add_special_tokens=False)]


def _own(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


@pytest.mark.parametrize("tokenizer", [byte_level, metaspace])
@pytest.mark.parametrize("declared", CLASSES)
def test_every_combination(tmp_path: Path, declared: str | None, tokenizer: Any) -> None:
    """Of the model's type, the class and the kind of tokenizer.json; with config.json beside it too, as for vLLM."""
    placed_somewhere = False
    for name in _distinct_types():
        config = {"tokenizer_class": declared} if declared else {}
        source, target = write(tmp_path / name, tokenizer(), config, model_type=name), tmp_path / f"placed_{name}"
        target.mkdir()
        try:
            wanted = _ids(_own(source))
        except Exception:  # a class that does not fit, each in its own way
            with pytest.raises(BuildError):
                place_tokenizer(Checkpoint.read(source), target, lambda _: None, trust_remote_code=False)
            continue
        place_tokenizer(Checkpoint.read(source), target, lambda _: None, trust_remote_code=False)
        assert _ids(load_tokenizer(target)) == wanted, name
        shutil.copy(source / "config.json", target)
        assert _ids(_own(target)) == wanted, name
        placed_somewhere = True
    assert placed_somewhere


@pytest.mark.parametrize("where", ["added_tokens_decoder", "added_tokens.json", "extra_special_tokens"])
@pytest.mark.parametrize("tokenizer", [byte_level, metaspace])
def test_every_added_token_is_decoded(tmp_path: Path, tokenizer: Any, where: str) -> None:
    """Tokens that tokenizer.json does not have, wherever the checkpoint names them."""
    size, names = tokenizer().get_vocab_size(), ("<think>", "<tool_call>")
    numbered = {name: size + at for at, name in enumerate(names)}
    decoder = {str(number): {"content": name, "special": False} for name, number in numbered.items()}
    configs: dict[str, dict[str, Any]] = {
        "added_tokens_decoder": {"added_tokens_decoder": decoder},
        "added_tokens.json": {},
        "extra_special_tokens": {"extra_special_tokens": list(names)},
    }
    source, target = write(tmp_path / "source", tokenizer(), configs[where]), tmp_path / "target"
    if where == "added_tokens.json":
        (source / where).write_text(json.dumps(numbered))
    target.mkdir()
    place_tokenizer(Checkpoint.read(source), target, lambda _: None, trust_remote_code=False)
    detokenizers = factory.load(target)
    original = _own(source)
    for name, number in numbered.items():
        assert original.convert_tokens_to_ids(name) == number
        assert detokenizers.decode([number]).strip() == name


def _placed(source: Path, target: Path, lines: list[str]) -> Path:
    target.mkdir()
    place_tokenizer(Checkpoint.read(source), target, lines.append, trust_remote_code=False)
    return target


@pytest.mark.parametrize("told", [{"eos_token_id": [2]}, {}])
def test_the_tokenizers_end_token_ends_answers(tmp_path: Path, told: dict[str, Any]) -> None:
    source = write(tmp_path / "source", byte_level(), {"eos_token": "<|end|>"}, eos_token_id=2)
    (source / "generation_config.json").write_text(json.dumps(told))
    lines: list[str] = []
    generation = json.loads((_placed(source, tmp_path / "target", lines) / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, byte_level().token_to_id("<|end|>")]
    assert any("<|end|>" in line for line in lines)
    assert json.loads((source / "generation_config.json").read_text()) == told


def test_end_tokens_that_agree_are_no_news(tmp_path: Path) -> None:
    lines: list[str] = []
    target = _placed(write(tmp_path / "source", byte_level(), {}), tmp_path / "target", lines)
    assert not (target / "generation_config.json").exists()
    assert lines == []


def test_lost_text_is_said(tmp_path: Path) -> None:
    """Llama 2's kind without bytes for what its vocabulary has not."""
    content = json.loads(metaspace().to_str())
    content["model"]["byte_fallback"] = False
    lines: list[str] = []
    source = write(tmp_path / "source", Tokenizer.from_str(json.dumps(content)), {})
    _placed(source, tmp_path / "target", lines)
    assert len(lines) == 1
    assert "does not hold every text" in lines[0]


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}},
        {"chat_template": [{"name": "default", "template": None}, {"name": "tool_use"}]},
        {"tokenizer_class": "T5Tokenizer"},
        {"added_tokens_decoder": {"5": "not a token"}},
    ],
)
def test_what_cannot_be_loaded_is_refused(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence, and without a question on the terminal."""
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("a question on the terminal"))
    source = write(tmp_path / "source", byte_level(), config, model_type="unknown")
    (source / "own.py").write_text("raise SystemExit('run')\n")
    with pytest.raises(BuildError) as caught:
        _placed(source, tmp_path / "target", [])
    assert "\n" not in str(caught.value)


def test_a_chat_template_of_earlier_releases(tmp_path: Path) -> None:
    """It is placed where tools and thoughts are looked for."""
    source = write(tmp_path / "source", byte_level(), {"chat_template": None})
    (source / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    target = _placed(source, tmp_path / "target", [])
    assert (target / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
