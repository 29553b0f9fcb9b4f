"""Sources of checkpoints: a directory, a GGUF file, the Hugging Face hub, or a named model of the package index."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openai_bls.builder.checkpoint.config import read_config
from openai_bls.builder.checkpoint.files import is_there
from openai_bls.builder.checkpoint.kind import require_no_adapter
from openai_bls.builder.source.gguf_file import sole_gguf
from openai_bls.builder.source.named_models import NAMED_MODELS, fetch
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.core.nearest import did_you_mean, nearest

SOURCE = "model"
"""Key of `Manifest.builder`: what the engine was built from, as `source_of` has it."""

_GENERIC_NAMES = re.compile(r"(checkpoint|model|hf|final|output|snapshot)s?([-_]?\d+)?|[0-9a-f]{40}", re.IGNORECASE)
_DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*")
_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+)/([\w./-]+\.gguf)")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py"]
# Of repositories without safetensors.
_PYTORCH_FILES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


def find_source(model: str, report: Callable[[str], None], revision: str = "") -> Path:
    """The folder or the GGUF file of the checkpoint `model`, on this machine; downloaded if need be.

    Args:
        model: a directory, a GGUF file, a hub id, one with a GGUF file's path behind it, or a name of `NAMED_MODELS`.
        report: called with one line per stage.
        revision: commit, tag or branch on the hub; empty is the default branch.

    Raises:
        BuildError: there is none, or it cannot be had, or its name is not UTF-8; or there is a revision of what is not
            on the hub.
    """
    found = source_here(model, revision)
    if found is not None:
        return found
    if model in NAMED_MODELS:
        return fetch(model, report)
    inside = _hub_file(model)
    report(f"downloading {model}" + (f" at {revision}" if revision else ""))
    try:
        from huggingface_hub import hf_hub_download

        if inside:
            return Path(hf_hub_download(inside[1], inside[2], revision=revision or None))
        folder = _snapshot(model, _FILES, revision)
        if not any(folder.glob("*.safetensors")):
            folder = _snapshot(model, [*_FILES, *_PYTORCH_FILES], revision)
    except Exception as error:  # the hub's own errors, the network's, and the file system's
        raise _unreachable(model, error, revision) from None
    require_no_adapter(folder)
    if not (folder / "config.json").is_file():
        raise BuildError(f"{model} has no config.json; if it has GGUF files, give one of them: {model}/NAME.gguf")
    return folder


def source_here(model: str, revision: str = "") -> Path | None:
    """The folder or the GGUF file of `model` on this machine; None if it would be downloaded. Asks no network.

    Raises:
        BuildError: it cannot be downloaded either, since it is no name that a hub could have; or as `find_source`.
    """
    require_utf8(source_of(model))
    if revision:
        _require_revisions(model)
    path = local_path(model)
    if is_there(path) and path.suffix == ".gguf":
        return path
    if path.is_dir():
        gguf = sole_gguf(path)
        return _checkpoint(path) if gguf is None else gguf
    if model not in NAMED_MODELS and not _hub_file(model):
        _require_hub_id(model)
    return None


def _hub_file(model: str) -> re.Match[str] | None:
    """Match of a file in a repository of the hub, such as owner/name/file.gguf."""
    outside = local_path(model).exists() or model.startswith((".", "/", "~"))
    return None if outside else _HUB_FILE.fullmatch(model)


def require_utf8(path: str) -> None:
    """Raise `BuildError` if the path is not UTF-8, as manifests and configurations are."""
    try:
        path.encode()
    except UnicodeEncodeError:
        told = os.fsencode(path).decode(errors="replace")
        raise BuildError(f"the path {told} is not UTF-8, as the engine's files are: rename that directory") from None


def _snapshot(model: str, patterns: list[str], revision: str) -> Path:
    """A repository of the hub, in the hub's cache: its files that match `patterns`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    bars: list[Any] = []

    class Bar(tqdm):
        """Bar that vanishes. The hub leaves some of its own open, and the next lines are written into them."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "leave": False})  # type: ignore[no-untyped-call]
            bars.append(self)

    try:
        return Path(snapshot_download(model, allow_patterns=patterns, revision=revision or None, tqdm_class=Bar))
    finally:
        for bar in reversed(bars):
            bar.close()


def commit_of(source: Path) -> str:
    """Commit on the hub that a downloaded `source` is of, by its folder in the hub's cache; empty for any other."""
    _, folder, below = str(source).rpartition("/snapshots/")
    commit = below.partition("/")[0]
    return commit if folder and _COMMIT.fullmatch(commit) else ""


def _require_revisions(model: str) -> None:
    path = local_path(model)
    if path.exists():
        what = f"{path} is a {'directory' if path.is_dir() else 'file'} here"
    elif model in NAMED_MODELS:
        what = f"{model} is one release of a package, {NAMED_MODELS[model].requirement}"
    else:
        return
    raise BuildError(f"--revision is of a repository on the hub: {what}")


def _checkpoint(folder: Path) -> Path:
    """`folder`, if it may hold a checkpoint."""
    require_no_adapter(folder)
    if not is_there(folder / "config.json"):
        inside = sorted([*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")])
        hint = f", but {inside[0].parent} has one" if inside else ""
        raise BuildError(f"{folder} is not a Hugging Face checkpoint: it has no config.json{hint}")
    return folder


def is_gguf(model: str) -> bool:
    """True if `model` stands for a GGUF file; nothing is downloaded.

    Raises:
        BuildError: it is a directory with several.
    """
    path = local_path(model)
    if path.is_dir():
        return sole_gguf(path) is not None
    return model in NAMED_MODELS or path.suffix == ".gguf"


def fetch_config(model: str, revision: str = "") -> dict[str, Any]:
    """The config.json of a directory or a hub id; of the latter only that file and ModelOpt's are downloaded.

    Raises:
        BuildError: there is none, or it cannot be had.
    """
    if revision:
        _require_revisions(model)
    if is_gguf(model):
        raise BuildError(f"{model} is a GGUF file, which has no config.json: give the checkpoint that it was made from")
    folder = local_path(model)
    if folder.is_dir():
        return read_config(folder)
    _require_hub_id(model)
    try:
        # hf_quant_config.json is ModelOpt's, and not everywhere.
        folder = _snapshot(model, ["config.json", "hf_quant_config.json"], revision)
    except Exception as error:  # as above
        raise _unreachable(model, error, revision) from None
    return read_config(folder)


def no_gguf(engine: str, model: str, able: Sequence[str]) -> BuildError:
    """Refusal of a GGUF file as the source of an engine.

    Args:
        engine: name of the engine.
        model: value of --model.
        able: engines that take it.
    """
    others = f", or --engine {' or '.join(able)}" if able else ""
    return BuildError(
        f"{model} is a GGUF file, which the engine {engine} does not take: give the checkpoint that it was made "
        f"from{others}"
    )


def local_path(model: str) -> Path:
    """`model` as a local path."""
    try:
        return Path(model).expanduser()
    except RuntimeError:  # the home of nobody here
        return Path(model)


def source_of(model: str) -> str:
    """Source that --model names, independent of the current folder."""
    path = local_path(model)
    return str(path.resolve()) if path.exists() else model


def default_name(model: str) -> str:
    """The last part of the path or id that names the model rather than its role."""
    parts = [part.removesuffix(".gguf") for part in local_path(model).absolute().parts if part.strip("/")]
    return next((part for part in reversed(parts) if not _GENERIC_NAMES.fullmatch(part)), parts[-1])


def _require_hub_id(model: str) -> None:
    path = local_path(model)
    if path.exists():
        raise BuildError(f"{path} is a file, not a directory with a Hugging Face checkpoint")
    if not model.startswith((".", "/", "~")) and _HUB_ID.fullmatch(model):
        return
    path = path.absolute()
    missing = _missing(path)
    near = nearest(missing.name, _inside(missing.parent))
    hint = f" (did you mean {missing.with_name(near)}?)" if near else ""
    raise BuildError(
        f"there is no {missing}{hint}: --model is a directory with a Hugging Face checkpoint, a GGUF file or a hub id"
    )


def _missing(path: Path) -> Path:
    """The first part of an absolute path that is not there."""
    return next(part for part in (*reversed(path.parents), path) if not part.exists())


def _inside(folder: Path) -> list[str]:
    """Names of what is in a folder, as far as this user may see."""
    try:
        return sorted(other.name for other in folder.iterdir())
    except OSError:
        return []


def _meant(model: str) -> str:
    """Hint for a hub id that is near to a named model or to a path here; empty if it is near to none."""
    missing = _missing(Path(model).absolute())
    said = did_you_mean(model, [*NAMED_MODELS]) or did_you_mean(missing.name, _inside(missing.parent))
    return f" ({said})" if said else ""


def _unreachable(model: str, error: Exception, revision: str) -> BuildError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return BuildError(f"{model} has no commit, tag or branch {revision} on the hub (--revision)")
    here = f"{model} is no directory here ({Path(model).absolute()}){_meant(model)}"
    if isinstance(error, GatedRepoError):
        return BuildError(f"{model} is gated: accept its terms on its page on the hub, then run `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return BuildError(f"{here}, and the hub has no such repository, or a private one (run `hf auth login`)")
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    cached = _cached_revisions(model)
    if cached and (revision or _DEFAULT_REVISION) not in cached:
        about = f"{model} at {revision} (--revision)" if revision else f"{model} at its default branch"
        why = "HF_HUB_OFFLINE is set" if offline else f"cannot be had from the hub ({first_line(error)})"
        return BuildError(
            f"{about} is not in the hub's cache, which has {', '.join(cached)}, and {why}: give one of these"
        )
    if offline:
        return BuildError(f"{here}, and HF_HUB_OFFLINE is set and it is not in the cache: give a directory")
    return BuildError(
        f"{here}, and cannot be had from the hub ({first_line(error)}): without a network give a directory, or set "
        "HF_HUB_OFFLINE=1 if it is in the cache"
    )


def _cached_revisions(model: str) -> list[str]:
    """Branches, tags and commits of a repository that the hub's cache has; commits that no name has are whole."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    inside = _HUB_FILE.fullmatch(model)
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=inside[1] if inside else model, repo_type="model"))
    refs = sorted(path for path in (folder / "refs").glob("**/*") if path.is_file())
    named = {path.relative_to(folder / "refs").as_posix(): path.read_text().strip() for path in refs}
    commits = {path.name for path in (folder / "snapshots").glob("*")}
    return [
        *(name for name, commit in named.items() if commit in commits),
        *sorted(commits.difference(named.values())),
    ]
