"""Recipe of the null engine, which takes a checkpoint's vocabulary and limits."""

from __future__ import annotations

import msgspec

from openai_bls.builder.engine_build import EngineBuild, RecipeRequest
from openai_bls.builder.recipe import max_model_len
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import BuildError, FileRecord, KvCacheSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.plugin import Lazy
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs


class NullRecipe:
    """See `Recipe`."""

    def __init__(self, request: RecipeRequest) -> None:
        options = request.options
        if options.lora.adapters or options.lora.max_loras:
            raise BuildError("--lora-dir and --max-loras are for engines with a model: the null engine has none")
        if options.max_images:
            raise BuildError(f"--max-images {options.max_images}: the null engine takes text alone")
        self.manifest = Manifest(
            engine="null",
            model_name=request.model_name,
            max_model_len=max_model_len(options, request.checkpoint.facts),
            max_batch_size=options.batch_size,
            created=0,
            dtype=options.dtype,
            kv_cache=KvCacheSettings(max_tokens_in_kv_cache=options.max_tokens_in_kv_cache),
            trust_remote_code=options.trust_remote_code,
        )
        self.configs = render_configs(engine_model(EngineSettings(), suffix=options.name))
        self.key = repr(msgspec.structs.replace(self.manifest, model_name=""))

    def fill(self, _prepared: Prepared) -> dict[str, FileRecord]:
        """Nothing: the engine has no weights."""
        return {}


BUILD = EngineBuild(
    recipe=Lazy("openai_bls.builder.null:NullRecipe"),
    accepts=frozenset({"max_tokens_in_kv_cache", "max_images"}),
    gguf=True,
)
