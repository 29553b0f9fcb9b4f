"""Description of an engine that the C++ backend runs, read from its folder: the backend cannot be asked."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from openai_bls.core import config_pbtxt
from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import (
    BUILD_HINT,
    MANIFEST_NAME,
    EngineLoadError,
    LoraSettings,
    Manifest,
    load_manifest,
    short,
)
from openai_bls.engines.engine_info import engine_info
from openai_bls.transport.grpc import wire
from openai_bls_tensorrt_llm.legacy import encoding
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

logger = logging.getLogger(__name__)


class Description(msgspec.Struct, frozen=True):
    """An engine and the contract that its model offers."""

    manifest: Manifest
    info: EngineInfo
    inputs: frozenset[str]
    """Input tensors that the model declares; Triton refuses others."""
    chunked_context: bool
    """True if a prompt may be longer than one step."""


def describe(model_dir: Path) -> Description:
    """The engine in a model's folder.

    Raises:
        EngineLoadError: it is not one, or its config.pbtxt lacks what the official contract needs.
    """
    version_dir = _version_dir(model_dir)
    manifest = load_manifest(version_dir)
    if manifest.engine != "tensorrt_llm":
        raise EngineLoadError(
            f"{short(version_dir / MANIFEST_NAME)} is of an engine of the kind {manifest.engine!r}, which the C++ "
            f"backend does not run: {BUILD_HINT} with --backend cpp"
        )
    record = TensorRtLlmRecord.of(manifest)
    config = _config(model_dir)
    inputs, outputs = config_pbtxt.names(config, "input"), config_pbtxt.names(config, "output")
    for section, needed, declared in (
        ("input", encoding.REQUIRED_INPUTS, inputs),
        ("output", wire.OUTPUTS, outputs),
    ):
        missing = [name for name in needed if name not in declared]
        if missing:
            raise EngineLoadError(
                f"{model_dir.name}/config.pbtxt does not declare the {section} {', '.join(missing)} of the official "
                f"tensor contract (names of TensorRT-LLM 0.20 and later): {BUILD_HINT}"
            )
    parameters = config_pbtxt.parameters(config)
    fields = set(encoding.supported(inputs))
    if "output_log_probs" not in outputs or parameters.get("normalize_log_probs", "true").lower() != "false":
        # Normalized over the top_k tokens alone they are not the model's: all 0 for greedy, for one thing.
        fields.discard("logprobs")
    guided = "grammar" in fields and bool(parameters.get("xgrammar_tokenizer_info_path"))
    if manifest.lora.adapters:
        logger.warning(
            "%s: the adapters %s are not served: the C++ backend wants their weights in a form of its own",
            model_dir.name,
            ", ".join(manifest.lora.adapters),
        )
    info = engine_info(
        msgspec.structs.replace(manifest, lora=LoraSettings()),
        read_checkpoint(version_dir / manifest.checkpoint),
        version=record.version,
        supported=fields,
        max_logprobs=0,
        grammar_backend="xgrammar" if guided and parameters.get("guided_decoding_backend") == "xgrammar" else "",
        grammar_kinds=tuple(encoding.GUIDE_TYPES),
        grammar_dialect="guided_decoding",
    )
    return Description(manifest, info, inputs, parameters.get("enable_chunked_context", "").lower() == "true")


def signature(model_dir: Path) -> tuple[int, int]:
    """Inode and modification time of the manifest, which change with every build."""
    try:
        status = (_version_dir(model_dir) / MANIFEST_NAME).stat()
    except (OSError, EngineLoadError):
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _version_dir(model_dir: Path) -> Path:
    """The version that Triton loads, unless told otherwise: the highest."""
    versions = [path for path in model_dir.glob("*") if path.name.isdigit() and path.is_dir()]
    if not versions:
        raise EngineLoadError(f"{short(model_dir)} has no version folder: {BUILD_HINT}")
    return max(versions, key=lambda path: int(path.name))


def _config(model_dir: Path) -> config_pbtxt.Message:
    path = model_dir / "config.pbtxt"
    try:
        return config_pbtxt.read(path)
    except OSError as error:
        raise EngineLoadError(f"cannot read {short(path)}: {error.strerror}") from None
    except ValueError as error:
        raise EngineLoadError(f"{short(path)} is not readable ({error})") from None
