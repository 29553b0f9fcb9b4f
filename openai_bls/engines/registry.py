"""Which engine runs: decided by the manifest, by what is installed, and by overrides; never by editing code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import (
    EngineLoadError,
    Manifest,
    Milliseconds,
    NotNegative,
    NullSettings,
    checkpoint_dir,
    load_manifest,
)
from openai_bls.core.settings import TensorRtLlmSettings

TESTED_TRANSFORMERS = ((5, 17), (5, 24))
"""From the first version, below the second: its continuous-batching API moves from release to release."""

_EMBEDDED_SETTINGS = {"exclude_input_in_output", "max_tokens_in_paged_kv_cache", "enable_kv_cache_reuse"}
"""Of `TensorRtLlmSettings`, those that the embedded engine honours."""


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be set at start-up over the manifest's head. All values may come as strings."""

    engine: Literal["auto", "transformers", "null"] = "auto"
    """`auto` takes the manifest's; `null` measures and tests without the model."""
    device: Annotated[str, msgspec.Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` is the GPU where there is one."""
    num_threads: NotNegative = 0
    """CPU threads for the model's arithmetic; 0 is half of the cores."""
    max_batch_size: NotNegative = 0
    """Sequences in flight; 0 takes the manifest's."""
    max_num_tokens: NotNegative = 0
    """Tokens of one forward pass, prompts and new tokens together; 0 lets the engine choose."""
    max_tokens_in_kv_cache: NotNegative = 0
    """0 takes the manifest's."""
    prefix_sharing: bool = True
    """Prompts that begin alike share their KV cache."""
    attention: Literal["auto", "paged", "varlen", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "auto"
    """Implementation of attention. `paged` reads the KV cache where it lies, by kernels of our own; `varlen` copies it
    together for PyTorch's flash attention; the others are transformers'. `auto` is sdpa on a CPU, and on a GPU the
    first of paged, flash attention where installed, varlen and sdpa that can be used."""
    cuda_graphs: bool | None = None
    """Replay captured CUDA graphs. None: on a GPU, with an attention that allows it (paged and flash attention)."""
    async_batching: bool | None = None
    """Prepare a step while the one before it runs. None: on a GPU, unless each step needs an attention mask."""
    fused_ops: bool | None = None
    """Norms, rotations, gates and projections in fewer operations. None: on a GPU, with paged attention."""
    allow_untested_versions: bool = False
    """Try a transformers outside the tested range."""
    null_token_ids: str = ""
    """Ids separated by commas."""
    null_echo: bool | None = None
    null_step_delay_ms: Milliseconds | None = None
    null_first_token_delay_ms: Milliseconds | None = None
    null_fail_on_token_id: int | None = None
    null_crash_at_step: NotNegative | None = None
    null_lora_names: str = ""
    """Names of made-up adapters, separated by commas."""

    def null_settings(self, base: NullSettings) -> NullSettings:
        """`base` with the `null_*` fields that are set here.

        Raises:
            EngineLoadError: `null_token_ids` is not a list of ids.
        """
        changes: dict[str, object] = {}
        for name in NullSettings.__struct_fields__:
            value = getattr(self, f"null_{name}", None)
            if value is not None and value != "":
                changes[name] = value
        if self.null_token_ids:
            changes["token_ids"] = [part.strip() for part in self.null_token_ids.split(",")]
        try:
            return msgspec.convert(msgspec.structs.asdict(base) | changes, NullSettings, strict=False)
        except msgspec.ValidationError as error:
            raise EngineLoadError(f"bad null engine setting: {error}") from None


def parse_options(overrides: Mapping[str, str]) -> EngineOptions:
    """Options from strings.

    Raises:
        EngineLoadError: an unknown name or a bad value.
    """
    for name in overrides:
        if name not in EngineOptions.__struct_fields__:
            known = ", ".join(EngineOptions.__struct_fields__)
            raise EngineLoadError(f"unknown engine setting {name!r}; known are {known}")
    try:
        return msgspec.convert(dict(overrides), EngineOptions, strict=False)
    except msgspec.ValidationError as error:
        raise EngineLoadError(f"bad engine setting: {error}") from None


def with_settings(options: EngineOptions, settings: TensorRtLlmSettings) -> EngineOptions:
    """`options` of the embedded engine with what config.pbtxt says; the environment counts more.

    Raises:
        EngineLoadError: the settings hold one that only TensorRT-LLM knows.
    """
    unset = TensorRtLlmSettings()
    for name in TensorRtLlmSettings.__struct_fields__:
        if name not in _EMBEDDED_SETTINGS and getattr(settings, name) != getattr(unset, name):
            raise EngineLoadError(
                f"{name} in config.pbtxt is for TensorRT-LLM engines, and this one is embedded; "
                f"it knows {', '.join(sorted(_EMBEDDED_SETTINGS))}"
            )
    changes: dict[str, object] = {}
    if settings.max_tokens_in_paged_kv_cache and not options.max_tokens_in_kv_cache:
        changes["max_tokens_in_kv_cache"] = settings.max_tokens_in_paged_kv_cache
    if settings.enable_kv_cache_reuse is False:
        changes["prefix_sharing"] = False
    return msgspec.structs.replace(options, **changes) if changes else options


def create_engine(
    version_dir: Path,
    on_step: StepListener,
    overrides: Mapping[str, str] | None = None,
    settings: TensorRtLlmSettings | None = None,
) -> Engine:
    """The engine that lies in `version_dir`, loaded and ready.

    Args:
        version_dir: a version folder of the model `tensorrt_llm`, with `engine.json`.
        on_step: the listener.
        overrides: fields of `EngineOptions` as strings.
        settings: the model's.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    options = parse_options(overrides or {})
    settings = settings or TensorRtLlmSettings()
    if options.engine == "null":
        return _create_null(version_dir, on_step, options)
    manifest = load_manifest(version_dir)
    kind = manifest.engine if options.engine == "auto" else options.engine
    if kind == "null":
        return _create_null(version_dir, on_step, options)
    if kind == "tensorrt_llm":
        _refuse_overrides(overrides or {})
        from openai_bls.engines.tensorrt_llm.loading import load

        return load(version_dir, manifest, settings, on_step)
    options = with_settings(options, settings)
    _require_packages(options)
    from openai_bls.engines.embedded.engine import TransformersEngine

    return TransformersEngine(version_dir, manifest, options, on_step)


def _refuse_overrides(overrides: Mapping[str, str]) -> None:
    """What the environment may say of other engines has no meaning for TensorRT-LLM's."""
    for name in overrides:
        if name != "engine":
            raise EngineLoadError(
                f"OPENAI_BLS_ENGINE_{name.upper()} is of the embedded engine: "
                "TensorRT-LLM's settings stand in the model's config.pbtxt"
            )


def _create_null(version_dir: Path, on_step: StepListener, options: EngineOptions) -> Engine:
    """The null engine, which takes the checkpoint's vocabulary and limits where there is one."""
    from openai_bls.engines.capabilities import MAX_LOGPROBS
    from openai_bls.engines.null import SUPPORTED, NullEngine

    try:
        manifest: Manifest | None = load_manifest(version_dir)
    except EngineLoadError:
        # A null engine that was asked for by name needs nothing on disk.
        if options.engine != "null":
            raise
        manifest = None
    settings = options.null_settings(manifest.null if manifest else NullSettings())
    lora_names = tuple(name.strip() for name in options.null_lora_names.split(",") if name.strip())
    version = f"null {importlib.metadata.version('openai_bls')}"
    info = EngineInfo(
        engine="null",
        model_name=manifest.model_name if manifest else "null",
        max_model_len=manifest.max_model_len if manifest else 8192,
        max_batch_size=options.max_batch_size or (manifest.max_batch_size if manifest else 256),
        vocab_size=settings.vocab_size,
        eos_token_ids=(),
        supported=SUPPORTED + (("lora_name",) if lora_names else ()),
        version=version,
        created=manifest.created if manifest else 0,
        max_logprobs=MAX_LOGPROBS,
        lora_names=lora_names,
    )
    if manifest and (manifest.files or (version_dir / manifest.checkpoint / "config.json").is_file()):
        facts = read_checkpoint(checkpoint_dir(version_dir, manifest))
        info = msgspec.structs.replace(
            info,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            pad_token_id=facts.pad_token_id,
            # It has no penalties, hence none by default.
            sampling_defaults=msgspec.structs.replace(facts.sampling_defaults, repetition_penalty=1.0),
        )
    if settings.token_ids and max(settings.token_ids) >= info.vocab_size:
        raise EngineLoadError(
            f"the null engine's token id {max(settings.token_ids)} is outside the vocabulary "
            f"of {info.vocab_size} tokens"
        )
    return NullEngine(info, settings, on_step)


def _require_packages(options: EngineOptions) -> None:
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise EngineLoadError(
                f"the engine needs the package {package}, which this Python does not have: "
                "run `pip install 'openai_bls[engine]'`"
            )
    found = importlib.metadata.version("transformers")
    low, high = TESTED_TRANSFORMERS
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not low <= numbers < high and not options.allow_untested_versions:
        wanted = f"from {low[0]}.{low[1]} and below {high[0]}.{high[1]}"
        raise EngineLoadError(
            f"transformers {found} is outside the range this release was tested with ({wanted}): "
            f"run `pip install 'openai_bls[engine]'`"
        )
