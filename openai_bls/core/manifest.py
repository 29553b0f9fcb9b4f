"""Engine manifest `engine.json`: the builder's record in `model_repository/tensorrt_llm/1/`.

::

    tensorrt_llm/1/
    ├── engine.json       this manifest, written last
    ├── checkpoint/       config.json, generation_config.json; the weights (*.safetensors) unless they are in an engine
    ├── engine/           of TensorRT-LLM's flow `tensorrt` only: config.json, rank0.engine, rank1.engine ...
    └── lora/             adapters, a folder each

A folder without a readable manifest holds no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

MANIFEST_NAME = "engine.json"
ENGINE_FOLDER = "engine"
"""Folder of a version that holds TensorRT-LLM's engine files."""
FORMAT_VERSION = 2
BUILD_HINT = "run `openai-bls build --model <checkpoint>`"

ASIDE = ".aside-"
"""Name prefix of files and folders that a running build is writing."""
OLD = f"{ASIDE}old-"
"""Name prefix of folders that a build is replacing. Beside a manifest, `OLD`checkpoint says that a build was cut short
while it moved its folders into place, and that the tokenizers may not belong to the checkpoint."""

# Files up to this size are compared by content whenever an engine is loaded, larger ones by size unless more is asked
# for: start-up must not read gigabytes twice.
_SMALL_BYTES = 1 << 20
_HASH_BLOCK_BYTES = 1 << 20

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]


class EngineSetupError(Exception):
    """An engine cannot be built or loaded; the message is one sentence for the operator's eyes."""


class EngineLoadError(EngineSetupError):
    """An engine, its manifest or a file of its checkpoint cannot be loaded."""


class BuildError(EngineSetupError):
    """An engine cannot be built; the builder and its command raise it."""


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the checkpoint as the builder left it."""

    size: NotNegative
    """Bytes."""
    sha256: str = ""
    """Hexadecimal; empty for large files in manifests of older releases, which are checked by size alone."""


class KvCacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of the KV cache; named as in the official backend."""

    max_tokens_in_kv_cache: NotNegative = 0
    """Tokens of all sequences together; 0 lets the engine choose."""
    free_memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """Largest share of the memory that the weights leave for a cache of the engine's choosing."""


class LoraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LoRA adapters of an engine, and room for more."""

    adapters: dict[str, str] = {}
    """Name of an adapter → its folder next to the manifest."""
    max_loras: NotNegative = 0
    """Adapters that may be loaded at a time, those above included; 0 is no adapter at all."""
    max_lora_rank: NotNegative = 0
    target_modules: tuple[str, ...] = ()
    """TensorRT-LLM's names of the modules that adapters may change; empty leaves it to TensorRT-LLM."""


class AnswerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Greedy answers of an engine at its build, compared at each load on the same kind of device."""

    device: str
    """`cpu`, or the GPU's name and compute capability, e.g. `NVIDIA H200 (9.0)`."""
    dtype: str
    """Data type of the loaded weights, e.g. `bfloat16`."""
    prompts: list[list[int]] = []
    """Prompts in token ids."""
    token_ids: list[list[int]] = []
    """Greedy answer to each."""
    logprobs: list[list[float]] = []
    """Log-probabilities of its tokens."""
    embeddings: list[list[float]] = []
    """Numbers that an engine which pools answers with instead; empty for one that generates."""


RecordT = TypeVar("RecordT", bound="EngineRecord")


class EngineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of an engine's part of the manifest, which only that engine reads."""

    @classmethod
    def of(cls: type[RecordT], manifest: Manifest) -> RecordT:
        """The record in `manifest`.

        Raises:
            EngineLoadError: it is not of this engine, or damaged.
        """
        try:
            return msgspec.convert(manifest.record, cls)
        except msgspec.ValidationError as error:
            raise EngineLoadError(
                f"engine.json does not say how the engine was built ({error}): {BUILD_HINT}"
            ) from None

    def fields(self) -> dict[str, Any]:
        """Value for `Manifest.record`."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


class ParallelRecord(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Build record of an engine that may have several ranks: the version of its package, and their number."""

    version: str
    """Version of the engine's package that the build found, e.g. `1.2.1`."""
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1

    @property
    def world_size(self) -> int:
        """Ranks, each a process with a GPU of its own."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of `engine.json`: an engine's files and settings."""

    engine: str
    """Name in `engines.registry`."""
    model_name: str
    """The name under which the model is served."""
    max_model_len: Positive
    """Maximum tokens of prompt and output together."""
    max_batch_size: Positive
    """Sequences in flight at the same time."""
    created: NotNegative
    """Unix seconds."""
    format_version: Positive = FORMAT_VERSION
    checkpoint: str = "checkpoint"
    """Folder next to the manifest."""
    dtype: Dtype = "auto"
    """Data type of the loaded weights. `auto` is float32 on a CPU and the checkpoint's own on a GPU."""
    kv_cache: KvCacheSettings = KvCacheSettings()
    trust_remote_code: bool = False
    """Run Python code that came with the checkpoint."""
    max_images: NotNegative = 0
    """Images that a prompt may hold; 0: the model takes text alone."""
    lora: LoraSettings = LoraSettings()
    files: dict[str, FileRecord] = {}
    """Files of the checkpoint folder, by name."""
    source: str = ""
    """Fingerprint of what this was built from and with, by which a second build sees that nothing changed."""
    revision: str = ""
    """Commit on the hub that the checkpoint is of; empty if it is from elsewhere."""
    builder: dict[str, str] = {}
    """Versions of the packages that built it, and what it was built from (`model`)."""
    record: dict[str, Any] = {}
    """Record of the engine, an `EngineRecord` as its plug-in says."""
    engine_python: str = ""
    """Python interpreter of the engine's own process: a path, or a command on PATH. Empty runs the engine in the
    process of the Triton model, and llama.cpp in one of the same interpreter."""
    engine_files: dict[str, FileRecord] = {}
    """Files of the folder `engine/`, by name."""


class _Head(msgspec.Struct, frozen=True):
    """Fields by which manifests of other releases are refused."""

    format_version: int = 0
    tensor_parallel_size: Positive = 1
    """Number of GPUs of the embedded engine, in manifests of releases in which it ran on several."""
    draft_checkpoint: str = ""
    """Folder of its draft model, in manifests of releases in which it took one."""


def short(path: Path) -> str:
    """The last three parts of a path: enough to find it, without the machine's layout."""
    return "/".join(path.parts[-3:])


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, and those that follow while a colon ends what was told; the name of its
    class if it has no message, or one that says nothing without it."""
    told = ""
    for line in str(error).strip().splitlines():
        told = f"{told} {line.strip()}".strip()
        if not told.endswith(":"):
            break
    if not told or isinstance(error, KeyError):  # whose message is the key
        return f"{type(error).__name__} {told}".strip()
    return told.rstrip(": ")


def write_manifest(version_dir: Path, manifest: Manifest) -> None:
    """Put `manifest` into `version_dir` so that readers see the old one or the new one, never half of one."""
    aside = version_dir / f"{ASIDE}{MANIFEST_NAME}"
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    aside.replace(version_dir / MANIFEST_NAME)


def load_manifest(version_dir: Path) -> Manifest:
    """The manifest in `version_dir`.

    Raises:
        EngineLoadError: there is none, it is not readable, or a newer release wrote it.
    """
    path = version_dir / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise EngineLoadError(f"no engine in {short(version_dir)}: {BUILD_HINT}") from None
    except OSError as error:
        raise EngineLoadError(f"cannot read {short(path)}: {error.strerror}") from None
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format_version > FORMAT_VERSION:
            raise EngineLoadError(
                f"{short(path)} has format {head.format_version}, newer than this release's {FORMAT_VERSION}: "
                f"update openai_bls, or {BUILD_HINT}"
            )
        if head.tensor_parallel_size > 1:
            size = head.tensor_parallel_size
            raise EngineLoadError(
                f"{short(path)} is of an embedded engine for {size} GPUs, which now runs on one GPU only: "
                f"run `openai-bls build --engine vllm --tp-size {size} --model <checkpoint>`"
            )
        if head.draft_checkpoint:
            raise EngineLoadError(
                f"{short(path)} is of an embedded engine with a draft model, which it no longer takes: {BUILD_HINT} "
                "without one, or with --engine vllm and a speculative_config in the file of --extra-engine-args"
            )
        fields = msgspec.json.decode(data, type=dict[str, Any])
        for gone in ("tensor_parallel_size", "draft_checkpoint", "draft_files"):
            fields.pop(gone, None)
        return msgspec.convert(_of_format_1(fields) if head.format_version < FORMAT_VERSION else fields, Manifest)
    except msgspec.DecodeError as error:
        raise EngineLoadError(f"{short(path)} is not readable ({error}): {BUILD_HINT}") from None


def _of_format_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a manifest of format 1, which had a field for each engine that has a record, named after it, and among
    its own fields those of the engine that has none."""
    record = fields.pop(str(fields.get("engine")), None)
    # Written for every engine.
    fields.pop("null", None)
    others = {name: value for name, value in fields.items() if name not in Manifest.__struct_fields__}
    kept = {name: value for name, value in fields.items() if name not in others} | {"format_version": FORMAT_VERSION}
    if record is None:
        return {**kept, "record": {name: value for name, value in others.items() if value is not None}}
    # What is not empty is nobody's, and refused by its name.
    return {**kept, **{name: value for name, value in others.items() if value}, "record": record}


def sha256(path: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """Hexadecimal SHA-256 of the file at `path`; `advance` is told the bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def record(path: Path, advance: Callable[[int], None] = lambda _: None) -> FileRecord:
    """The manifest's record of the file at `path`; `advance` is told the bytes."""
    return FileRecord(path.stat().st_size, sha256(path, advance))


def check_files(folder: Path, files: Mapping[str, FileRecord], *, hashes: bool) -> int:
    """Compare `files` in `folder` by size and, small ones or all with `hashes`, by hash; returns their bytes.

    Raises:
        EngineLoadError: a file is missing or has changed.
    """
    for name, expected in files.items():
        path = folder / name
        try:
            hashed = expected.sha256 and (hashes or expected.size <= _SMALL_BYTES)
            if path.stat().st_size != expected.size:
                what = "size"
            elif hashed and sha256(path) != expected.sha256:
                what = "hash"
            else:
                continue
        except OSError as error:
            raise EngineLoadError(f"{short(path)} cannot be read ({error.strerror}): {BUILD_HINT}") from None
        raise EngineLoadError(f"{short(path)} has not the {what} that it was built with: {BUILD_HINT} (with --force)")
    return sum(expected.size for expected in files.values())


def checkpoint_dir(version_dir: Path, manifest: Manifest, *, hashes: bool = False) -> Path:
    """The checkpoint folder of `manifest`, its files checked against their records.

    Args:
        version_dir: the folder that `manifest` lies in.
        manifest: manifest of the engine.
        hashes: whether large files are read and compared too.

    Raises:
        EngineLoadError: the folder or a file of it is missing or has changed, or a build was cut short.
    """
    folder = version_dir / manifest.checkpoint
    if (version_dir / f"{OLD}checkpoint").exists():
        raise EngineLoadError(f"the last build in {short(version_dir)} was cut short: {BUILD_HINT}")
    check_files(folder, manifest.files, hashes=hashes)
    if not (folder / "config.json").is_file():
        raise EngineLoadError(f"{short(folder)} has no config.json: {BUILD_HINT}")
    return folder
