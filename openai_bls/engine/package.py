"""Packaging: a Hugging Face checkpoint becomes an engine inside the model repository.

::

    checkpoint ──► tensorrt_llm/1/checkpoint/     configuration and weights
               ├─► tensorrt_llm/1/engine.json     the manifest, last of all
               └─► {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/

A further engine gets models of its own. Each model holds its own copy of the tokenizer, since a repository in object
storage is fetched model by model. All of it is prepared aside and then moved into place; until then the last engine
stays whole. `places` says where everything lies.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from openai_bls import discovery
from openai_bls.engine.checkpoint import CheckpointFacts, read_checkpoint
from openai_bls.engine.manifest import (
    FORMAT_VERSION,
    Dtype,
    EngineKind,
    EngineLoadError,
    FileRecord,
    KvCacheSettings,
    Manifest,
    checkpoint_dir,
    load_manifest,
    record,
    short,
)
from openai_bls.engine.places import FurtherPlace, Place, place_of
from openai_bls.engine.weights import CONFIG_FILES, place, place_tokenizer, place_weights

_DEFAULT_MODEL_LEN = 2048
_GENERIC_NAMES = re.compile(r"(checkpoint|model|hf|final|output|snapshot)s?([-_]?\d+)?|[0-9a-f]{40}", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*")

Report = Callable[[str], None]


class BuildOptions(msgspec.Struct, frozen=True):
    """What `build/engine.py` was asked for."""

    model: str
    """A Hugging Face directory, or the id of a repository on the hub."""
    model_repository: Path
    name: str = ""
    """Of a further engine; empty is the default one."""
    engine: EngineKind = "transformers"
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    """None takes the checkpoint's own."""
    max_batch_size: int = 64
    max_tokens_in_kv_cache: int = 0
    """0 lets the engine choose."""
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
    target = place_of(options.model_repository, options.name)
    target.recover()
    source = _find_source(options.model, report)
    facts = read_checkpoint(source)
    model_name = options.served_model_name or _default_name(options.model)
    _require_free(model_name, target, options.model_repository)
    fingerprint = _fingerprint(source, options, model_name, target)
    if not options.force:
        present = _present(target, fingerprint)
        if present is not None:
            target.clean()
            report(f"{short(target.version_dir)} is up to date (--force builds it again)")
            return present
    max_model_len = _max_model_len(options.max_model_len, facts)
    if options.max_batch_size < 1:
        raise EngineLoadError("--max-batch-size must be at least 1")
    if options.max_tokens_in_kv_cache and options.max_tokens_in_kv_cache < max_model_len:
        raise EngineLoadError(
            f"--max-tokens-in-kv-cache {options.max_tokens_in_kv_cache} does not hold one sequence of {max_model_len} "
            "tokens: raise it, or give a smaller --max-model-len"
        )
    try:
        files = _prepare(source, facts, options, target, report)
        manifest = Manifest(
            engine=options.engine,
            model_name=model_name,
            max_model_len=max_model_len,
            max_batch_size=options.max_batch_size,
            created=int(time.time()),
            dtype=options.dtype,
            kv_cache=KvCacheSettings(max_tokens_in_kv_cache=options.max_tokens_in_kv_cache),
            trust_remote_code=options.trust_remote_code,
            files=files,
            source=fingerprint,
            builder=_versions(),
        )
        target.commit(manifest)
    finally:
        target.clean()
    report(f"{short(target.version_dir)}: {model_name}, {manifest.engine}, {max_model_len} tokens")
    return manifest


def remove(repository: Path, name: str, report: Report) -> None:
    """Take the further engine `name` out of the repository.

    Raises:
        EngineLoadError: there is none.
    """
    FurtherPlace(repository, name).remove()
    report(f"removed the engine {name}")


def _prepare(
    source: Path, facts: CheckpointFacts, options: BuildOptions, target: Place, report: Report
) -> dict[str, FileRecord]:
    """Fill the folders that `target` gives; returns what the manifest says of the checkpoint's files."""
    checkpoint, tokenizers = target.begin()
    report("tokenizer")
    place_tokenizer(source, tokenizers[0], trust_remote_code=options.trust_remote_code)
    for folder in tokenizers[1:]:
        shutil.copytree(tokenizers[0], folder, dirs_exist_ok=True)
    for file_name in CONFIG_FILES:
        if (source / file_name).is_file():
            place(source / file_name, checkpoint / file_name)
    if options.engine == "transformers":
        place_weights(source, checkpoint, facts, report, trust_remote_code=options.trust_remote_code)
    return {path.name: record(path) for path in sorted(checkpoint.iterdir()) if path.is_file()}


def _require_free(model_name: str, target: Place, repository: Path) -> None:
    for model, names in discovery.served_names(repository).items():
        if model != target.model and model_name in names:
            raise EngineLoadError(
                f"{model_name!r} is a name of the engine in {model} already: give another with --served-model-name"
            )


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


def _fingerprint(source: Path, options: BuildOptions, model_name: str, target: Place) -> str:
    """Changes when the files built from, or what was asked for, change."""
    digest = hashlib.sha256()
    asked = msgspec.structs.replace(options, model="", model_repository=Path(), force=False)
    digest.update(repr((FORMAT_VERSION, model_name, asked, target.generated)).encode())
    for path in sorted(source.iterdir()):
        if path.is_file():
            stat = path.stat()
            digest.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def _present(target: Place, fingerprint: str) -> Manifest | None:
    """The engine in place, if it is whole and was built from the same."""
    try:
        manifest = load_manifest(target.version_dir)
        checkpoint_dir(target.version_dir, manifest)
    except EngineLoadError:
        return None
    needed = [folder / "tokenizer.json" for folder in target.tokenizers]
    needed += [target.version_dir.parent.parent / path for path in target.generated]
    if manifest.source != fingerprint or not all(path.is_file() for path in needed):
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
