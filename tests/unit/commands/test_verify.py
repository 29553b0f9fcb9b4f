"""`openai-bls verify`: what it prints, what it finds."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.commands import verify
from openai_bls.core.manifest import FileRecord, Manifest, record, write_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.null.record import NullSettings
from tests.unit.commands.verify_support import ANSWER, answer_length, answering_repository, change, run
from tests.unit.core_support import VOCAB_SIZE, tiny_tokenizer

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "demo" / "checkpoint"


@pytest.fixture
def repository(tmp_path: Path, tokenizer_dir: Path) -> Path:
    return answering_repository(tmp_path / "model_repository", tokenizer_dir)


def test_an_answer(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = answer_length()
    assert run(repository, "--prompt", "Hi?", "--system", "Be brief.", "--max-tokens", str(count)) == 0
    output, errors = capsys.readouterr()
    assert "files: 1," in output
    assert "engine: tiny by null" in output
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n" in output
    assert f"answer:\n{ANSWER}\n{count} tokens, length; the first after " in output
    assert errors == ""


def test_a_further_engine(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("tensorrt_llm", "preprocessing", "openai_bls/1/tokenizer"):
        (repository / folder).rename(repository / f"{folder}_small")
    assert run(repository, "--name", "small") == 0
    assert f"answer:\n{ANSWER}" in capsys.readouterr().out
    assert run(repository) == 1


def test_a_model_without_a_chat_template(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = repository / "preprocessing" / "1" / "tokenizer" / "tokenizer_config.json"
    fields = msgspec.json.decode(config.read_bytes())
    del fields["chat_template"]
    config.write_bytes(msgspec.json.encode(fields))
    assert run(repository, "--prompt", "Once upon", "--system", "A tale.") == 0
    output = capsys.readouterr().out
    assert "no chat template" in output
    assert "tokens:\nA tale.\n\nOnce upon\nanswer:" in output


def spoil_size(repository: Path) -> None:
    (repository / "tensorrt_llm/1/checkpoint/config.json").write_text('{"vocab_size": 9999}  ')


def spoil_hash(repository: Path) -> None:
    engine = repository / "tensorrt_llm" / "1" / "engine"
    engine.mkdir()
    (engine / "rank0.engine").write_bytes(b"abd")
    wanted = FileRecord(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    change(repository, engine_files={"rank0.engine": wanted})


FAILURES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no engine": (
        lambda r: (r / "tensorrt_llm/1/engine.json").unlink(),
        "no engine in model_repository/tensorrt_llm/1",
    ),
    "no tokenizer": (lambda r: shutil.rmtree(r / "preprocessing"), "preprocessing/1/tokenizer is missing"),
    "no detokenizer": (lambda r: shutil.rmtree(r / "openai_bls"), "openai_bls/1/tokenizer holds no tokenizer.json"),
    "a file of another size": (spoil_size, "checkpoint/config.json has not the size"),
    "a file with another hash": (spoil_hash, "engine/rank0.engine has not the hash"),
    "a file that is missing": (
        lambda r: change(r, engine_files={"rank1.engine": FileRecord(3)}),
        "engine/rank1.engine cannot be read (No such file or directory)",
    ),
    "an engine that fails": (
        lambda r: change(r, record=NullSettings(crash_at_step=1).fields()),
        "the engine failed: The engine",
    ),
    "a prompt that does not fit": (lambda r: change(r, max_model_len=20), "maximum context length is 20 tokens"),
    "a setting that does not exist": (
        lambda r: (r / "tensorrt_llm/config.pbtxt").write_text(
            'parameters { key: "kv_cache" value { string_value: "1" } }'
        ),
        "unknown parameter 'kv_cache'",
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_failures(repository: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, expected = FAILURES[what]
    spoil(repository)
    assert run(repository) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("openai-bls verify: ")
    assert errors.count("\n") == 1
    assert expected in errors


def test_without_hashes(repository: Path) -> None:
    spoil_hash(repository)
    assert run(repository, "--no-hashes") == 0


def test_no_answer(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end token comes first."""
    (repository / "tensorrt_llm/1/checkpoint/config.json").write_text(
        f'{{"vocab_size": {VOCAB_SIZE}, "eos_token_id": {tiny_tokenizer().encode(ANSWER).ids[0]}}}'
    )
    change(repository, files={})
    assert run(repository) == 1
    assert "answered with no token" in capsys.readouterr().err


def test_bad_arguments_of_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["verify.py", "--max-tokens", "0"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "build" / "verify.py"), run_name="__main__")
    assert "--max-tokens" in capsys.readouterr().err


def test_settings(tmp_path: Path) -> None:
    config = tmp_path / "config.pbtxt"
    manifest = Manifest("null", "tiny", 64, 4, 1)
    assert verify.read_settings(config, manifest) == EngineSettings()
    config.write_text('parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" } }')
    assert verify.read_settings(config, manifest) == EngineSettings(kv_cache_free_gpu_mem_fraction=0.5)


def test_the_demo_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo checkpoint, in the embedded engine."""
    repository = tmp_path / "model_repository"
    version_dir = repository / "tensorrt_llm" / "1"
    shutil.copytree(DEMO, version_dir / "checkpoint")
    for model in ("preprocessing", "openai_bls"):
        shutil.copytree(DEMO, repository / model / "1" / "tokenizer")
    files = {path.name: record(path) for path in (version_dir / "checkpoint").iterdir() if path.suffix != ".jinja"}
    manifest = Manifest(
        engine="transformers", model_name="demo", max_model_len=512, max_batch_size=2, created=1, files=files
    )
    write_manifest(version_dir, manifest)
    assert run(repository, "--prompt", "What colour is the sky?") == 0
    output = capsys.readouterr().out
    assert "answer:\nThe sky is blue because air scatters blue light more than red light.\n" in output
    assert "tokens, stop; the first after " in output
