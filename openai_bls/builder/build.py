"""Build: a Hugging Face checkpoint becomes an engine inside the model repository.

::

    checkpoint ──► tensorrt_llm/1/checkpoint/     configuration; weights, unless an engine holds them
               ├─► tensorrt_llm/1/engine/         built by TensorRT-LLM
               ├─► tensorrt_llm/1/draft/          configuration and weights of a draft model
               ├─► tensorrt_llm/1/engine.json     the manifest, last of all
               ├─► tensorrt_llm/config.pbtxt      serving settings, as literal values
               └─► {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/

A named engine gets separate models. Each model holds its own copy of the tokenizer, since a repository in object
storage is fetched model by model. All of it is prepared aside and then moved into place; until then the last engine
stays whole. `targets` has where everything lies; the plug-in of each engine has its recipe (`engine_build`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from openai_bls import __version__
from openai_bls.builder.checkpoint.checkpoint import Checkpoint, open_checkpoint
from openai_bls.builder.checkpoint.files import CONFIG_FILES
from openai_bls.builder.configs import new_configs, report_edited, settings_hash
from openai_bls.builder.engine_build import RecipeRequest, engine_build, engine_builds
from openai_bls.builder.file_errors import of_files
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.placing.adapters import report_other_bases
from openai_bls.builder.placing.files import place
from openai_bls.builder.recipe import Recipe, Report
from openai_bls.builder.source.gguf_file import describe
from openai_bls.builder.source.hub import SOURCE, commit_of, default_name, find_source, is_gguf, no_gguf, source_of
from openai_bls.builder.targets.named import NamedTarget
from openai_bls.builder.targets.selection import BuildTarget, sole_build, target_of
from openai_bls.builder.tokenizer.placing import place_tokenizer, report_template
from openai_bls.core.manifest import (
    ENGINE_FOLDER,
    FORMAT_VERSION,
    MANIFEST_NAME,
    BuildError,
    EngineLoadError,
    FileRecord,
    Manifest,
    checkpoint_dir,
    load_manifest,
    record,
    write_manifest,
)
from openai_bls.engines.images.processor import PROCESSOR_FILES
from openai_bls.launcher import progress
from openai_bls.triton_models.repository.engines import served_names
from openai_bls.triton_models.repository.foreign_backend import foreign_backend

_HASH_THREADS = 4


def build(options: BuildOptions, report: Report) -> Manifest:
    """Put the engine into the repository; returns its manifest.

    Args:
        options: options of the build.
        report: called with one line per stage.

    Raises:
        BuildError: it cannot be built; one sentence that says why.
    """
    with _build_errors(options.model_repository):
        target = target_of(options.model_repository, options.name)
        with sole_build(target), tempfile.TemporaryDirectory() as scratch:
            target.clean()
            return _build(options, target, Path(scratch), report)


def remove(repository: Path, name: str, report: Report) -> None:
    """Take the named engine `name` out of the repository.

    Raises:
        BuildError: there is none, or it cannot be removed.
    """
    with _build_errors(repository):
        NamedTarget(repository, name).remove()
    report(f"removed the engine {name}")


@contextlib.contextmanager
def _build_errors(repository: Path) -> Iterator[None]:
    """Errors of the file system, and of what a load would refuse as well, become `BuildError`s."""
    try:
        yield
    except EngineLoadError as error:
        raise BuildError(str(error)) from None
    except OSError as error:
        told = of_files(error, repository)
        if told is None:
            raise
        raise told from None


def _build(options: BuildOptions, target: BuildTarget, scratch: Path, report: Report) -> Manifest:
    engine = engine_build(options.engine)
    if is_gguf(options.model) and not engine.gguf:
        able = [name for name, build in engine_builds().items() if build.gguf]
        raise no_gguf(options.engine, options.model, able)
    source = find_source(options.model, report, options.revision)
    revision = commit_of(source)
    if source.is_file():
        describe(source, scratch, report)
        source = scratch
    checkpoint = open_checkpoint(source, report, force=options.force)
    model_name = options.served_model_name or default_name(options.model)
    if options.batch_size < 1:
        raise BuildError("--max-batch-size must be at least 1")
    recipe = engine.recipe()(RecipeRequest(options, checkpoint, model_name, target, report))
    _require_free(model_name, recipe.manifest, options, target)
    called = checkpoint.config.get("_name_or_path")
    report_other_bases(options.lora, [model_name, source_of(options.model), str(called or "")], report)
    built_from = _fingerprint(source, recipe, target)
    source_id = f"{built_from}-{settings_hash(recipe.configs)}"
    identity = {"model_name": model_name, "source": source_id, "revision": revision}
    present = _present(target)
    if present is not None and not options.force:
        if identity == {field: getattr(present, field) for field in identity}:
            report_edited(target, recipe, report)
            report(f"{target.version_dir} is up to date (--force builds it again)")
            return present
        if present.source.partition("-")[0] == built_from:
            return _configure(present, identity, recipe, target, report)
    try:
        files = _prepare(checkpoint, recipe, options, target, report)
        versions = _versions(engine.packages) | recipe.manifest.builder | {SOURCE: source_of(options.model)}
        manifest = msgspec.structs.replace(
            recipe.manifest, **identity, **files, created=int(time.time()), builder=versions
        )
        target.commit(manifest, new_configs(target, recipe, report))
    finally:
        target.clean()
    report(f"{target.version_dir}: {model_name}, {manifest.engine}, {manifest.max_model_len} tokens")
    return manifest


def _prepare(
    checkpoint: Checkpoint, recipe: Recipe, options: BuildOptions, target: BuildTarget, report: Report
) -> dict[str, dict[str, FileRecord]]:
    """Fill the folders that `target` gives; returns the manifest's fields about files."""
    prepared = target.begin()
    tokenizers = prepared.tokenizers
    report("tokenizer")
    tokenizer = place_tokenizer(checkpoint, tokenizers[0], report, trust_remote_code=options.trust_remote_code)
    report_template(tokenizer, tokenizers[0], report)
    for folder in tokenizers[1:]:
        shutil.copytree(tokenizers[0], folder, dirs_exist_ok=True)
    for file_name in (*CONFIG_FILES, *PROCESSOR_FILES):
        # The tokenizer's folder may have the end tokens that a chat of this model needs beside its own.
        found = [path for folder in (tokenizers[0], checkpoint.folder) if (path := folder / file_name).is_file()]
        if found:
            place(found[0], prepared.checkpoint / file_name)
    engine_files = recipe.fill(prepared)
    report("hashes")
    return {
        "files": _records(prepared.checkpoint),
        "engine_files": engine_files,
    }


def _records(folder: Path) -> dict[str, FileRecord]:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    total = sum(path.stat().st_size for path in paths)
    with progress.bar("hashes", total) as bar, ThreadPoolExecutor(_HASH_THREADS) as pool:
        hashed = pool.map(lambda path: record(path, bar.advance), paths)
        return dict(zip((path.name for path in paths), hashed, strict=True))


def _configure(
    present: Manifest, identity: dict[str, str], recipe: Recipe, target: BuildTarget, report: Report
) -> Manifest:
    """Give the engine that is there another name or other settings, or a commit with the same files: no other build."""
    manifest = msgspec.structs.replace(present, **identity)
    configs = new_configs(target, recipe, report)
    # While files change the settings are nobody's: if this is cut short, the next run writes them again.
    built_from = identity["source"].partition("-")[0]
    write_manifest(target.version_dir, msgspec.structs.replace(manifest, source=f"{built_from}-"))
    target.configure(configs)
    write_manifest(target.version_dir, manifest)
    report(f"{target.version_dir}: the engine stays as it is, with new settings (no rebuild)")
    return manifest


def _require_free(model_name: str, manifest: Manifest, options: BuildOptions, target: BuildTarget) -> None:
    """Check that the API serves nothing else under the names of the engine and of its adapters.

    Raises:
        BuildError: it does.
    """
    # A foreign backend's adapters are no separate models.
    adapters = [] if foreign_backend(manifest) is not None else list(options.lora.adapters)
    if model_name in adapters:
        raise BuildError(
            f"{model_name!r} is the engine's own name and an adapter's: give the adapter another, --lora-dir NAME=DIR, "
            "or the engine, with --served-model-name"
        )
    repository = options.model_repository
    for model, names in served_names(repository).items():
        manifests = _manifests(repository / model)
        if model == target.model:
            # What is there is replaced; the aliases, which come first, stay.
            taken = names[: len(names) - len(manifests)]
        else:
            taken = [*names, *(name for manifest in manifests for name in _adapters(manifest))]
            if model_name in taken:
                raise BuildError(
                    f"{model_name!r} is a name of the engine in {model} already: give another with --served-model-name"
                )
        for name in adapters:
            if name in taken:
                raise BuildError(
                    f"{name!r} is a name of the engine in {model} already: give the adapter another, --lora-dir "
                    "NAME=DIR"
                )


def _manifests(model: Path) -> list[Manifest]:
    """Readable manifests in a model's version folders; `served_names` reads the same."""
    found = []
    for path in sorted(model.glob(f"*/{MANIFEST_NAME}")):
        with contextlib.suppress(EngineLoadError):
            found.append(load_manifest(path.parent))
    return found


def _adapters(manifest: Manifest) -> list[str]:
    """LoRA adapters that the API serves as models, by their names."""
    return [] if foreign_backend(manifest) is not None else list(manifest.lora.adapters)


def _fingerprint(source: Path, recipe: Recipe, target: BuildTarget) -> str:
    """Changes when the files built from, or what was asked for, change."""
    digest = hashlib.sha256()
    digest.update(repr((FORMAT_VERSION, recipe.key, sorted(target.generated.items()))).encode())
    for path in sorted(source.iterdir()):
        if path.is_file():
            stat = path.stat()
            digest.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def _present(target: BuildTarget) -> Manifest | None:
    """The engine in place, if it is whole."""
    try:
        manifest = load_manifest(target.version_dir)
        checkpoint_dir(target.version_dir, manifest)
    except EngineLoadError:
        return None
    needed = [folder / "tokenizer.json" for folder in target.tokenizers]
    needed += [target.version_dir.parent.parent / path for path in target.generated]
    needed += target.configs.values()
    if not all(path.is_file() for path in needed):
        return None
    engine = target.version_dir / ENGINE_FOLDER
    for name, expected in manifest.engine_files.items():
        if not (engine / name).is_file() or (engine / name).stat().st_size != expected.size:
            return None
    adapters = manifest.lora.adapters.values()
    return manifest if all((target.version_dir / folder).is_dir() for folder in adapters) else None


def _versions(packages: Iterable[str]) -> dict[str, str]:
    # Of this package there is no record where it runs from a source tree.
    found = {"openai_bls": __version__}
    for package in ("tokenizers", *packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
