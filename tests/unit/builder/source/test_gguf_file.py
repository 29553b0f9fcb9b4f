"""GGUF files as sources: tokenizer and chat template come along, and damaged files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings, strategies
from tokenizers import Tokenizer

from openai_bls.builder.source.gguf_file import describe
from openai_bls.builder.source.hub import fetch_config
from openai_bls.core.checkpoint import facts_of, generation_config
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import BuildError, load_manifest
from tests.unit.builder.builds import refusal, run
from tests.unit.builder.source.gguf_support import write_gguf
from tests.unit.core_support import CHAT_TEMPLATE, tiny_tokenizer


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


GOOD = {
    "temp": strategies.integers(0, 200).map(lambda n: n / 100),
    "top_k": strategies.integers(0, 1000),
    "top_p": strategies.integers(1, 100).map(lambda n: n / 100),
    "min_p": strategies.integers(0, 100).map(lambda n: n / 100),
    "penalty_repeat": strategies.integers(1, 200).map(lambda n: n / 100),
}
BAD: strategies.SearchStrategy[float | str] = strategies.sampled_from((-1, -0.5, float("nan"), float("inf"), "0.7"))
NAMES = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}


@settings(max_examples=12)
@given(strategies.fixed_dictionaries({}, optional=GOOD), strategies.dictionaries(strategies.sampled_from([*GOOD]), BAD))
def test_sampling_values(good: dict[str, float], bad: dict[str, float | str]) -> None:
    """The file's own, llama.cpp's where it has none or none that an engine takes, and the build says which."""
    lines: list[str] = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "described"
        folder.mkdir()
        file = write_gguf(Path(scratch) / "tiny.gguf", sampling={**good, **bad})
        describe(file, folder, lines.append)
        made = facts_of(folder, {"vocab_size": 9}, generation_config(folder)).sampling_defaults
    own = {NAMES.get(name, name): value for name, value in good.items() if name not in bad}
    llama_cpp = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert made == msgspec.convert({**llama_cpp, **own}, SamplingParams)
    said = [line for line in lines if line.startswith("sampling ")]
    assert [name for name in llama_cpp if said and name in said[0]] == [name for name in llama_cpp if name not in own]


def test_a_folder_with_a_file_and_a_second_run(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    write_gguf(folder / "model.gguf")
    assert run(folder, repository, engine="null")[0].model_name == "downloaded"
    assert "up to date" in run(folder, repository, engine="null")[1][-1]
    write_gguf(folder / "other.gguf")
    assert "several GGUF files" in refusal(folder, repository, engine="null")


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


BROKEN = {
    lfs_pointer: "run `git lfs pull`",
    truncated: "cut short or damaged",
    cut_in_the_header: "cut short or damaged",
    no_magic: "does not begin with GGUF",
    unknown: "architecture rwkv7 is not supported",
}


@pytest.mark.parametrize(("break_it", "reason"), BROKEN.items())
def test_broken_files(break_it: Callable[[Path], object], reason: str, tmp_path: Path, repository: Path) -> None:
    """Refused with one sentence; the last engine stays."""
    run(write_gguf(tmp_path / "good.gguf"), repository, engine="null")
    last = load_manifest(repository / "tensorrt_llm" / "1")
    file = tmp_path / "broken.gguf"
    break_it(file)
    assert reason in refusal(file, repository, engine="null")
    assert load_manifest(repository / "tensorrt_llm" / "1") == last


def test_what_cannot_be_built_from(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny-00001-of-00002.gguf")
    assert "one of 2 parts: join them" in refusal(file, repository, engine="null")
    file = file.rename(tmp_path / "tiny.gguf")
    with pytest.raises(BuildError, match=r"has no config\.json"):
        fetch_config(str(file))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install gguf" in refusal(file, repository, engine="null")
