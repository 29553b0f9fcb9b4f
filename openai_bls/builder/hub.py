"""Sources of checkpoints: a directory, or the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai_bls.builder.model_kind import require_no_adapter
from openai_bls.builder.tensorrt_llm.hf_config import read_config
from openai_bls.core.manifest import EngineLoadError, first_line

_GENERIC_NAMES = re.compile(r"(checkpoint|model|hf|final|output|snapshot)s?([-_]?\d+)?|[0-9a-f]{40}", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py"]
# Of repositories without safetensors.
_PYTORCH_FILES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


def find_source(model: str, report: Callable[[str], None]) -> Path:
    """The folder of the checkpoint `model`, a directory or a hub id, on this machine; downloaded if need be.

    Raises:
        EngineLoadError: there is none, or it cannot be had.
    """
    path = local_path(model)
    if path.is_dir():
        require_no_adapter(path)
        if not (path / "config.json").exists():
            inside = sorted([*path.glob("*/config.json"), *path.glob("snapshots/*/config.json")])
            hint = f", but {inside[0].parent} has one" if inside else ""
            raise EngineLoadError(f"{path} is not a Hugging Face checkpoint: it has no config.json{hint}")
        return path
    _require_hub_id(model)
    report(f"downloading {model}")
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=_FILES))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(model, allow_patterns=[*_FILES, *_PYTORCH_FILES]))
        return folder
    except Exception as error:  # the hub's own errors, the network's, and the file system's
        raise _unreachable(model, error) from None


def fetch_config(model: str) -> dict[str, Any]:
    """The config.json of a directory or a hub id; of the latter only that file and ModelOpt's are downloaded.

    Raises:
        EngineLoadError: there is none, or it cannot be had.
    """
    folder = local_path(model)
    if folder.is_dir():
        return read_config(folder)
    _require_hub_id(model)
    try:
        from huggingface_hub import snapshot_download

        # hf_quant_config.json is ModelOpt's, and not everywhere.
        folder = Path(snapshot_download(model, allow_patterns=["config.json", "hf_quant_config.json"]))
    except Exception as error:  # as above
        raise _unreachable(model, error) from None
    return read_config(folder)


def local_path(model: str) -> Path:
    """The path that `model` is, if it is one."""
    try:
        return Path(model).expanduser()
    except RuntimeError:  # the home of nobody here
        return Path(model)


def default_name(model: str) -> str:
    """The last part of the path or id that names the model rather than its role."""
    parts = [part for part in local_path(model).absolute().parts if part.strip("/")]
    return next((part for part in reversed(parts) if not _GENERIC_NAMES.fullmatch(part)), parts[-1])


def _require_hub_id(model: str) -> None:
    path = local_path(model)
    if path.exists():
        raise EngineLoadError(f"{path} is a file, not a directory with a Hugging Face checkpoint")
    if not model.startswith((".", "/", "~")) and _HUB_ID.fullmatch(model):
        return
    path = path.absolute()
    missing = next(part for part in (*reversed(path.parents), path) if not part.exists())
    close = difflib.get_close_matches(missing.name, [other.name for other in missing.parent.iterdir()], 1)
    hint = f" (did you mean {missing.with_name(close[0])}?)" if close else ""
    raise EngineLoadError(
        f"there is no {missing}{hint}: --model is a directory with a Hugging Face checkpoint, or a hub id"
    )


def _unreachable(model: str, error: Exception) -> EngineLoadError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    here = f"{model} is no directory here ({Path(model).absolute()})"
    if isinstance(error, GatedRepoError):
        return EngineLoadError(f"{model} is gated: accept its terms on its page on the hub, then run `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return EngineLoadError(f"{here}, and the hub has no such repository, or a private one (run `hf auth login`)")
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return EngineLoadError(f"{here}, and HF_HUB_OFFLINE is set and it is not in the cache: give a directory")
    return EngineLoadError(
        f"{here}, and cannot be had from the hub ({first_line(error)}): without a network give a directory, or set "
        "HF_HUB_OFFLINE=1 if it is in the cache"
    )
