"""GGUF files built for llama.cpp: which engine `build` chooses, what it refuses, and a build with its self-test."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from openai_bls.builder.build import build
from openai_bls.builder.engine_build import Wanted, choose_engine
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.source import gguf_file
from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.commands.building import command
from openai_bls.commands.main import parse
from openai_bls.core.manifest import BuildError, load_manifest
from openai_bls.launcher.testing import copy_models
from openai_bls_llama_cpp import memory
from openai_bls_llama_cpp.recipe import building
from openai_bls_llama_cpp.record import LlamaCppRecord
from openai_bls_llama_cpp.vocabulary import token_ids
from tests.unit.builder.source.gguf_support import write_gguf
from tests.unit.docs.pages import ROOT
from tests_llama_cpp.engine.llama_cpp_support import needs_llama_cpp


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights="Q8_0", merged=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy_models(ROOT / "model_repository", tmp_path / "models")
    return tmp_path / "models"


@pytest.mark.parametrize("gpus", [[], ["NVIDIA H200"]], ids=str)
def test_engine_for_a_gguf_file(gpus: list[str]) -> None:
    """llama.cpp, with and without a GPU; the options that it does not know are refused."""
    assert choose_engine(Wanted(True, ["dtype"], gpus))[0] == "llama_cpp"
    with pytest.raises(BuildError, match="--dtype"):
        command.wanted(parse("build", ["--model", "tiny.gguf", "--dtype", "float32"]))


@pytest.mark.parametrize("engine", ["transformers", "vllm", "tensorrt_llm"])
def test_other_engines_take_no_gguf_file(engine: str, file: Path, repository: Path) -> None:
    with pytest.raises(BuildError, match="--engine llama_cpp"):
        build(BuildOptions(str(file), repository, engine=engine), lambda _: None)


@needs_llama_cpp
def test_build(file: Path, repository: Path) -> None:
    told: list[str] = []
    options = BuildOptions(str(file), repository, engine="llama_cpp", max_batch_size=4)
    manifest = build(options, told.append)
    assert manifest == load_manifest(repository / "tensorrt_llm" / "1")
    assert LlamaCppRecord.of(manifest).answers is not None
    assert "model.gguf" in manifest.files
    assert any("its numbers are its own" in line for line in told)
    told.clear()
    assert build(options, told.append) == manifest
    assert "up to date" in told[-1]


@needs_llama_cpp
def test_token_ids_are_those_of_llama_cpp(tmp_path: Path, repository: Path) -> None:
    """Of SentencePiece's kind too, where a text begins with spaces."""
    source = write_gguf(tmp_path / "tiny.gguf", weights="Q8_0", sentencepiece=True)
    build(BuildOptions(str(source), repository, engine="llama_cpp", self_test=False), lambda _: None)
    made = Tokenizer.from_file(str(repository / "preprocessing" / "1" / "tokenizer" / "tokenizer.json"))
    texts = [*SAMPLES, "  the", " a", "", "in </s> the"]
    assert [made.encode(text, add_special_tokens=False).ids for text in texts] == token_ids(source, texts)


@needs_llama_cpp
@pytest.mark.parametrize("pre", gguf_file.DIGITS_ALONE)
def test_numeric_characters_are_words_as_in_llama_cpp(pre: str, tmp_path: Path) -> None:
    """SmolLM2 is of this kind: no merge reaches over a digit, be it of another script, in a circle or a fraction."""
    merges = ["Ġ â", "Ġ Â", "Ġ 1", "1 2", "a 1", "1 a"]
    source = write_gguf(tmp_path / "tiny.gguf", merged=True, pre=pre, merges=merges)
    folder = tmp_path / "described"
    folder.mkdir()
    gguf_file.describe(source, folder, lambda _: None)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))

    @settings(max_examples=5, deadline=None)
    @given(st.lists(st.text(st.sampled_from("a1 12½①２٣Ⅷ.,\n'é")), min_size=20, max_size=20))
    def check(texts: list[str]) -> None:
        assert [made.encode(text, add_special_tokens=False).ids for text in texts] == token_ids(source, texts)

    check()
    texts = [*SAMPLES, " ①", " ½", "a12"]
    assert [made.encode(text, add_special_tokens=False).ids for text in texts] == token_ids(source, texts)


@needs_llama_cpp
def test_other_token_ids_than_llama_cpps_are_refused(
    file: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "token_ids", lambda _, texts: [[0]] * len(texts))
    options = BuildOptions(str(file), repository, engine="llama_cpp", self_test=False)
    with pytest.raises(BuildError, match="by llama"):
        build(options, lambda _: None)
    told: list[str] = []
    build(msgspec.structs.replace(options, force=True), told.append)
    assert any("by llama.cpp" in line for line in told)


@needs_llama_cpp
def test_sequences_at_once_where_nothing_is_said(file: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    options = BuildOptions(str(file), repository, engine="llama_cpp")
    manifest = build(options, told.append)
    assert manifest.max_batch_size == 8
    assert any(f"{manifest.max_model_len:,} for each of 8 sequences" in line for line in told)
    # What fits another day is no reason to build again.
    monkeypatch.setattr(memory, "_CELLS", 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: file.stat().st_size + (1 << 19))
    assert build(options, told.append) == manifest
    narrow = BuildOptions(str(file), repository, engine="llama_cpp", force=True, self_test=False)
    assert build(narrow, told.append).max_batch_size == 64


@needs_llama_cpp
def test_a_file_that_llama_cpp_does_not_read(tmp_path: Path, repository: Path) -> None:
    # transformers reads a vocabulary without merges.
    strange = write_gguf(tmp_path / "strange.gguf")
    with pytest.raises(BuildError, match="tokenizer merges"):
        build(BuildOptions(str(strange), repository, engine="llama_cpp"), lambda _: None)
    with pytest.raises(BuildError, match="GGUF files"):
        build(BuildOptions(str(ROOT / "demo" / "checkpoint"), repository, engine="llama_cpp"), lambda _: None)
    with pytest.raises(BuildError, match="256"):
        build(BuildOptions(str(strange), repository, engine="llama_cpp", max_batch_size=300), lambda _: None)
