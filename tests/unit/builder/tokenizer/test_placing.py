"""What a build says of a placed tokenizer's chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizerFast

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.tokenizer.placing import place_tokenizer, report_template
from openai_bls.output.detect import UNKNOWN_CALLS, UNKNOWN_REASONING
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from tests.unit.core_support import write_tokenizer

NONE = "completions work, conversations are refused (501), as not even one short message can be had: "


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content }}", []),
        (None, []),
        ("{{ '<think>' + messages[0].content + '</think>' }}", []),
        ("{{ '<musing>' + messages[0].reasoning_content | default('') + '</musing>' }}", [UNKNOWN_REASONING]),
        ("{{ raise_exception('not today') }}", [NONE + "The model's chat template refuses the messages: not today."]),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
            [NONE + "The model's chat template takes more than 2 s to render that."],
        ),
        ("{{ tools }}{{ messages[0].content }}", [UNKNOWN_CALLS]),
        (
            "{% if %}",
            [
                NONE + "The model's chat template cannot be parsed: Expected an expression, got 'end of statement "
                "block' (line 1)."
            ],
        ),
    ],
)
def test_what_is_said_of_a_template(tmp_path: Path, template: str | None, said: list[str]) -> None:
    lines: list[str] = []
    folder = write_tokenizer(tmp_path, template)
    report_template(load_tokenizer(folder), folder, lines.append)
    assert lines == said


ENTRY = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
OTHER_FILES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "another id": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"300": {"content": "<|im_end|>", **ENTRY}}},
        True,
    ),
    "a new token with an id that is taken": ("added_tokens.json", {"<new>": 5}, True),
    "a new token far from the last": ("added_tokens.json", {"<new>": 400}, True),
    "a new token behind the last": ("added_tokens.json", {"<new>": 261}, False),
    "an end token of no file": ("tokenizer_config.json", {"eos_token": "</nowhere>"}, True),
    "a map of a token that is there": ("special_tokens_map.json", {"eos_token": "<|endoftext|>"}, False),
}


@pytest.mark.parametrize("case", OTHER_FILES)
def test_files_that_contradict_each_other(tmp_path: Path, case: str) -> None:
    """What is served is what transformers makes of them, and the build says that they do not agree."""
    name, changes, told = OTHER_FILES[case]
    folder, target, lines = write_tokenizer(tmp_path / "source"), tmp_path / "placed", list[str]()
    target.mkdir()
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | changes))
    (folder / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 512}')
    placed = place_tokenizer(Checkpoint.read(folder), target, lines.append, trust_remote_code=False)
    assert any("contradict each other" in line for line in lines) == told
    own = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "a<new>b<|im_end|>c</nowhere>d"
    assert placed(text)["input_ids"] == own(text)["input_ids"]
    assert placed.get_vocab() == own.get_vocab()


def test_tokens_beyond_the_vocabulary_are_said(tmp_path: Path) -> None:
    folder, target, lines = write_tokenizer(tmp_path / "source"), tmp_path / "placed", list[str]()
    target.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 260}')
    place_tokenizer(Checkpoint.read(folder), target, lines.append, trust_remote_code=False)
    assert any("tokens that the model has not: </tool_call> (260)" in line for line in lines)


def test_token_types_of_pairs_are_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    (source / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 7}))
    BertTokenizerFast(str(source / "vocab.txt")).save_pretrained(source)
    checkpoint = Checkpoint.read(source)
    placed = place_tokenizer(checkpoint, target, lambda _: None, trust_remote_code=False)
    assert placed("a", "b")["token_type_ids"] == AutoTokenizer.from_pretrained(source)("a", "b")["token_type_ids"]
