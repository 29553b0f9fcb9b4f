"""Tokenizers in Python of the families that are known: from data made here, since the checkpoints are not."""

from __future__ import annotations

import base64
import io
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
import sentencepiece
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.builder.tokenizer.python_code import Made, from_ranks, from_sentencepiece, make
from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.manifest import BuildError
from openai_bls.output.detokenizer import factory

ROOT = Path(__file__).parents[4]
RESERVED = ["<reserved_106>", "<reserved_107>"]
PATTERN = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


@cache
def trained(dummy_prefix: bool = True, extra: bool = False, rule: str = "identity") -> bytes:
    """A SentencePiece model of the demo's prompts and answers, and of code."""
    files = (ROOT / "demo" / "golden.jsonl", Path(__file__))
    text = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=1000,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=extra,
        normalization_rule_name=rule,
        user_defined_symbols=RESERVED,
        character_coverage=0.99,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def ranks() -> dict[bytes, int]:
    """All bytes, and what words are joined from."""
    found = {bytes([byte]): byte for byte in range(256)}
    for word in (b"he", b"ll", b"llo", b"hello", b" w", b" wo", b"\xe4\xbd", "你".encode(), b"\n\n"):
        found[word] = len(found)
    return found


def write_ranks(path: Path) -> None:
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks().items()))


def folder(path: Path, model_type: str, tokenizer_config: dict[str, Any] | None = None, **files: bytes) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer_config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def text_of(made: Made, messages: list[dict[str, str]]) -> str:
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(made.chat_template)
    return template.render(messages=messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("dummy_prefix", "extra", "rule"),
    [(True, False, "identity"), (False, False, "identity"), (True, True, "identity"), (True, True, "nmt_nfkc")],
)
def test_sentencepiece(tmp_path: Path, dummy_prefix: bool, extra: bool, rule: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(dummy_prefix, extra, rule))
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = from_sentencepiece(path)
    assert tokenizer.get_vocab_size() == original.get_piece_size()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = factory.load(tmp_path)
    for text in SAMPLES:
        ids = original.encode(text)
        assert tokenizer.encode(text).ids == ids
        if rule == "identity" and not extra:
            assert ours.decode(ids) == text


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00▁"), max_size=20))
def test_any_text_comes_out_alike(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "own.model"
    if not path.exists():
        path.write_bytes(trained())
    assert converted(path).encode(text).ids == sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text)


@cache
def converted(path: Path) -> Any:
    return from_sentencepiece(path)


def test_ranks(tmp_path: Path) -> None:
    path = tmp_path / "qwen.tiktoken"
    write_ranks(path)
    special = {"<|endoftext|>": len(ranks()), "<|im_end|>": len(ranks()) + 1}
    tokenizer = from_ranks(path, PATTERN, special, nfc=True)
    reference = tiktoken.Encoding("t", pat_str=PATTERN, mergeable_ranks=ranks(), special_tokens=special)
    for text in ("hello world", "hhello\n\n你你好", "<|im_end|>hello"):
        assert tokenizer.encode(text).ids == reference.encode(text, allowed_special="all")
    # Unicode's form C first, as the model's own code has it.
    assert tokenizer.encode("e\u0301").ids == reference.encode("\u00e9")


def test_baichuan(tmp_path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["x", None]}, "tokenizer_class": "BaichuanTokenizer", "eos_token": "</s>"}
    made = make(folder(tmp_path, "baichuan", config, tokenizer__model=trained(False)))
    assert made is not None
    assert made.config == {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    text = text_of(made, [{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}])
    assert text == "S<reserved_106>hello<reserved_107>"
    ids = made.tokenizer.encode(text).ids
    original = sentencepiece.SentencePieceProcessor(model_proto=trained(False))
    roles = [original.piece_to_id(token) for token in RESERVED]
    # As its code builds the ids: each message encoded by itself, after the id of its role.
    assert ids == [*original.encode("S"), roles[0], *original.encode("hello"), roles[1]]


def chatglm(path: Path, code: str, config: dict[str, Any] | None = None) -> Path:
    files = {"tokenizer__model": trained(), "tokenization_chatglm__py": code.encode()}
    return folder(path, "chatglm", config or {}, **files)


def test_chatglm3(tmp_path: Path) -> None:
    made = make(chatglm(tmp_path, 'raise SystemExit("code that came with a checkpoint was run")  # "<|user|>"'))
    assert made is not None
    original = sentencepiece.SentencePieceProcessor(model_proto=trained())
    first = original.get_piece_size()
    text = text_of(made, [{"role": "user", "content": "你好"}])
    assert text == "[gMASK]sop<|user|>\n 你好<|assistant|>"
    ids = made.tokenizer.encode(text).ids
    # [MASK], [gMASK], [sMASK], sop, eop, system, user, assistant, observation, as its code counts them.
    assert ids[:3] == [first + 1, first + 3, first + 6]
    assert ids[-1] == first + 7
    assert ids[3:-1] == [*original.encode("\n"), *original.encode("你好")]
    assert made.end_tokens == (first + 6, first + 8)


def test_chatglm2(tmp_path: Path) -> None:
    made = make(chatglm(tmp_path, "class ChatGLMTokenizer: ..."))
    assert made is not None
    assert made.tokenizer.token_to_id("<|user|>") is None
    talk = [("user", "one"), ("assistant", "two"), ("user", "three")]
    text = text_of(made, [{"role": role, "content": content} for role, content in talk])
    assert text == "[gMASK]sop[Round 1]\n\n问：one\n\n答：two\n\n[Round 2]\n\n问：three\n\n答："


def test_ids_that_contradict_the_code(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"5000": {"content": "[gMASK]"}}}
    with pytest.raises(BuildError, match=r"\[gMASK\] .* 5000 .*tokenizer_config\.json"):
        make(chatglm(tmp_path, "", config))


def test_glm4_of_the_first_form(tmp_path: Path) -> None:
    names = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"]
    first = len(ranks())
    config = {"added_tokens_decoder": {str(first + n): {"content": name} for n, name in enumerate(names)}}
    write_ranks(tmp_path / "tokenizer.model")
    made = make(folder(tmp_path, "chatglm", config))
    assert made is not None
    assert made.chat_template == ""
    assert made.tokenizer.encode("[gMASK]<sop><|user|>").ids == [first + 2, first + 4, first + 7]


def test_the_first_qwen(tmp_path: Path) -> None:
    write_ranks(tmp_path / "qwen.tiktoken")
    made = make(folder(tmp_path, "qwen"))
    assert made is not None
    first = len(ranks())
    assert made.tokenizer.get_vocab_size() == first + 3 + 205
    assert made.end_tokens == (first + 2,)
    text = text_of(made, [{"role": "user", "content": "hello"}])
    assert text.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    assert made.tokenizer.encode("<|im_start|>hello").ids == [first + 1, ranks()[b"hello"]]


def test_other_families(tmp_path: Path) -> None:
    assert make(folder(tmp_path, "llama")) is None


@pytest.mark.parametrize(
    ("model_type", "files", "says"),
    [
        ("baichuan", {}, r"no tokenizer\.model"),
        ("baichuan", {"tokenizer__model": b"not a model"}, "SentencePiece"),
        ("qwen", {"qwen__tiktoken": b"???? 1\n"}, "byte pairs"),
        ("chatglm", {"tokenizer__model": b"aGU= 0\n"}, "added_tokens_decoder"),
    ],
)
def test_bad_data(tmp_path: Path, model_type: str, files: dict[str, bytes], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        make(folder(tmp_path, model_type, None, **files))


def test_a_tokenizer_that_comes_out_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained())
    monkeypatch.setattr(sentencepiece.SentencePieceProcessor, "encode", lambda *_: [1])
    with pytest.raises(BuildError, match=r"tokenizer\.json: 'Hello, world! How are you\?'"):
        from_sentencepiece(path)


def test_without_sentencepiece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(BuildError, match="pip install sentencepiece"):
        from_sentencepiece(tmp_path / "tokenizer.model")
