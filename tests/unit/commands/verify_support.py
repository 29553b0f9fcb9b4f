"""Repository whose engine has one answer, and the command `verify`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.commands.main import run as run_command
from openai_bls.core.manifest import Manifest, load_manifest, record, write_manifest
from openai_bls.engines.null.record import NullSettings
from tests.unit.core_support import VOCAB_SIZE, tiny_tokenizer

ANSWER = "Hello, wörld."


def answering_repository(folder: Path, tokenizer_dir: Path) -> Path:
    """A repository with a null engine that says `ANSWER`."""
    checkpoint = folder / "tensorrt_llm" / "1" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(f'{{"vocab_size": {VOCAB_SIZE}}}')
    for model in ("preprocessing", "openai_bls"):
        shutil.copytree(tokenizer_dir, folder / model / "1" / "tokenizer")
    token_ids = tuple(tiny_tokenizer().encode(ANSWER).ids)
    manifest = Manifest(
        engine="null",
        model_name="tiny",
        max_model_len=256,
        max_batch_size=4,
        created=1,
        files={"config.json": record(checkpoint / "config.json")},
        record=NullSettings(token_ids=token_ids, vocab_size=VOCAB_SIZE).fields(),
    )
    write_manifest(folder / "tensorrt_llm" / "1", manifest)
    return folder


def change(repository: Path, **fields: Any) -> None:
    """Change fields of the manifest."""
    version_dir = repository / "tensorrt_llm" / "1"
    write_manifest(version_dir, msgspec.structs.replace(load_manifest(version_dir), **fields))


def answer_length() -> int:
    """Tokens of `ANSWER`."""
    return len(tiny_tokenizer().encode(ANSWER).ids)


def run(repository: Path, *arguments: str) -> int:
    """The exit status of `openai-bls verify`."""
    return run_command("verify", ["--model-repository", str(repository), *arguments])
