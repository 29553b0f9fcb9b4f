"""Packaging: a Hugging Face checkpoint becomes an engine inside the model repository.

::

    checkpoint ──► tensorrt_llm/1/checkpoint/     configuration and weights
               ├─► tensorrt_llm/1/engine.json     the manifest, last of all
               └─► {preprocessing,postprocessing,openai_bls}/1/tokenizer/

Each model holds its own copy of the tokenizer, since a repository in object storage is fetched model by model. All of
it is prepared in folders named `.aside-…` and then moved into place; until then the last engine stays whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from openai_bls.engine.checkpoint import CheckpointFacts, read_checkpoint
from openai_bls.engine.manifest import (
    ASIDE,
    FORMAT_VERSION,
    OLD,
    Dtype,
    EngineKind,
    EngineLoadError,
    Manifest,
    checkpoint_dir,
    load_manifest,
    record,
    short,
    write_manifest,
)
from openai_bls.engine.weights import (
    CONFIG_FILES,
    place,
    place_tokenizer,
    place_weights,
)

TOKENIZER_MODELS = ("preprocessing", "postprocessing", "openai_bls")
_DEFAULT_MODEL_LEN = 2048
_GENERIC_NAMES = re.compile(r"(checkpoint|model|hf|final|output|snapshot)s?([-_]?\d+)?|[0-9a-f]{40}", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*")

Report = Callable[[str], None]


class BuildOptions(msgspec.Struct, frozen=True):
    """What `build/engine.py` was asked for."""

    model: str
    """A Hugging Face directory, or the id of a repository on the hub."""
    model_repository: Path
    engine: EngineKind = "transformers"
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    """None takes the checkpoint's own."""
    max_batch_size: int = 64
    served_model_name: str | None = None
    """None takes the directory's name."""
    trust_remote_code: bool = False
    force: bool = False
    """Build even if nothing changed."""


def build(options: BuildOptions, report: Report) -> Manifest:
    """Put the engine into the repository; returns its manifest.

    Args:
        options: what to build.
        report: called with one line per stage.

    Raises:
        EngineLoadError: it cannot be built; one sentence that says why.
    """
    if options.engine == "tensorrt_llm":
        raise EngineLoadError("this release cannot build TensorRT-LLM engines yet: use --engine transformers")
    version_dirs = {name: _version_dir(options.model_repository, name) for name in ("tensorrt_llm", *TOKENIZER_MODELS)}
    source = _find_source(options.model, report)
    facts = read_checkpoint(source)
    fingerprint = _fingerprint(source, options)
    if not options.force:
        present = _present(version_dirs, fingerprint)
        if present is not None:
            _clear_aside(version_dirs.values())
            report(f"{short(version_dirs['tensorrt_llm'])} is up to date (--force builds it again)")
            return present
    max_model_len = _max_model_len(options.max_model_len, facts)
    if options.max_batch_size < 1:
        raise EngineLoadError("--max-batch-size must be at least 1")
    try:
        return _build(source, facts, fingerprint, options, max_model_len, version_dirs, report)
    finally:
        _clear_aside(version_dirs.values())


def _build(
    source: Path,
    facts: CheckpointFacts,
    fingerprint: str,
    options: BuildOptions,
    max_model_len: int,
    version_dirs: dict[str, Path],
    report: Report,
) -> Manifest:
    _clear_aside(version_dirs.values())
    moves: list[tuple[Path, Path]] = []

    first = version_dirs[TOKENIZER_MODELS[0]] / f"{ASIDE}tokenizer"
    report("tokenizer")
    first.mkdir()
    place_tokenizer(source, first, trust_remote_code=options.trust_remote_code)
    for name in TOKENIZER_MODELS:
        aside = version_dirs[name] / f"{ASIDE}tokenizer"
        if aside != first:
            shutil.copytree(first, aside)
        moves.append((aside, version_dirs[name] / "tokenizer"))

    aside = version_dirs["tensorrt_llm"] / f"{ASIDE}checkpoint"
    aside.mkdir()
    for file_name in CONFIG_FILES:
        if (source / file_name).is_file():
            place(source / file_name, aside / file_name)
    if options.engine == "transformers":
        place_weights(source, aside, facts, report, trust_remote_code=options.trust_remote_code)
    moves.insert(0, (aside, version_dirs["tensorrt_llm"] / "checkpoint"))

    manifest = Manifest(
        engine=options.engine,
        model_name=options.served_model_name or _default_name(options.model),
        max_model_len=max_model_len,
        max_batch_size=options.max_batch_size,
        created=int(time.time()),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        files={path.name: record(path) for path in sorted(aside.iterdir()) if path.is_file()},
        source=fingerprint,
        builder=_versions(),
    )
    _swap(moves, lambda: write_manifest(version_dirs["tensorrt_llm"], manifest))
    report(f"{short(version_dirs['tensorrt_llm'])}: {manifest.model_name}, {manifest.engine}, {max_model_len} tokens")
    return manifest


def _version_dir(repository: Path, model: str) -> Path:
    if not (repository / model).is_dir():
        raise EngineLoadError(f"{short(repository)} is not the model repository: it has no folder {model}")
    folder = repository / model / "1"
    folder.mkdir(exist_ok=True)
    return folder


def _find_source(model: str, report: Report) -> Path:
    """The checkpoint's folder on this machine."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EngineLoadError(f"{model} is not a Hugging Face checkpoint: it has no config.json")
        return path
    if path.exists() or model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
        raise EngineLoadError(f"{model} is not a directory with a Hugging Face checkpoint")
    report(f"downloading {model}")
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub's own errors, the network's, and the file system's
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = "HF_HUB_OFFLINE is set and it is not in the cache" if offline else _first_line(error)
        raise EngineLoadError(f"{model} is no directory here and cannot be had from the hub: {reason}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _fingerprint(source: Path, options: BuildOptions) -> str:
    """Changes when the files built from, or what was asked for, change."""
    digest = hashlib.sha256()
    asked = msgspec.structs.replace(options, model="", model_repository=Path(), force=False)
    name = options.served_model_name or _default_name(options.model)
    digest.update(repr((FORMAT_VERSION, name, asked)).encode())
    for path in sorted(source.iterdir()):
        if path.is_file():
            stat = path.stat()
            digest.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def _present(version_dirs: dict[str, Path], fingerprint: str) -> Manifest | None:
    """The engine in place, if it is whole and was built from the same."""
    try:
        manifest = load_manifest(version_dirs["tensorrt_llm"])
        checkpoint_dir(version_dirs["tensorrt_llm"], manifest)
    except EngineLoadError:
        return None
    tokenizers = [version_dirs[name] / "tokenizer" / "tokenizer.json" for name in TOKENIZER_MODELS]
    if manifest.source != fingerprint or not all(path.is_file() for path in tokenizers):
        return None
    return manifest


def _max_model_len(wanted: int | None, facts: CheckpointFacts) -> int:
    most = facts.max_position_embeddings
    if wanted is None:
        return most or _DEFAULT_MODEL_LEN
    if wanted < 1 or (most is not None and wanted > most):
        raise EngineLoadError(f"--max-model-len {wanted} is outside what the model was made for (1 to {most})")
    return wanted


def _default_name(model: str) -> str:
    """The last part of the path or id that names the model rather than its role."""
    parts = [part for part in Path(model).expanduser().absolute().parts if part.strip("/")]
    return next((part for part in reversed(parts) if not _GENERIC_NAMES.fullmatch(part)), parts[-1])


def _versions() -> dict[str, str]:
    found = {}
    for package in ("openai_bls", "transformers", "torch", "tokenizers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _clear_aside(version_dirs: Iterable[Path]) -> None:
    """Remove what a build has left, and put back what it had moved away without a replacement."""
    for folder in version_dirs:
        for leftover in folder.glob(f"{ASIDE}*"):
            replaced = folder / leftover.name.removeprefix(OLD)
            if leftover.name.startswith(OLD) and not replaced.exists():
                leftover.rename(replaced)
            elif leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def _swap(moves: list[tuple[Path, Path]], finish: Callable[[], None]) -> None:
    """Move prepared folders into place and `finish`; on any failure put the old ones back.

    The first move's old folder stays until all is done: it marks a swap that was cut short.
    """
    done: list[tuple[Path, Path]] = []
    try:
        for aside, target in moves:
            old = target.with_name(f"{OLD}{target.name}")
            if target.exists():
                target.rename(old)
            done.append((target, old))
            aside.rename(target)
        finish()
    except BaseException:
        for target, old in reversed(done):
            if target.exists():
                shutil.rmtree(target)
            if old.exists():
                old.rename(target)
        raise
    for target, old in reversed(done):
        if old.exists():
            old.rename(target.with_name(f"{ASIDE}gone-{target.name}"))
