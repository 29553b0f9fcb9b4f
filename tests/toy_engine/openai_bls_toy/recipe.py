"""Build of the toy engine: a checkpoint's vocabulary and limits."""

from __future__ import annotations

from openai_bls.builder.engine_build import EngineBuild, RecipeRequest
from openai_bls.builder.recipe import max_model_len
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import FileRecord, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.plugin import Lazy
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs


class ToyRecipe:
    """See `Recipe`."""

    def __init__(self, request: RecipeRequest) -> None:
        self.manifest = Manifest(
            engine="toy",
            model_name=request.model_name,
            max_model_len=max_model_len(request.options, request.checkpoint.facts),
            max_batch_size=request.options.batch_size,
            created=0,
        )
        self.configs = render_configs(engine_model(EngineSettings(), suffix=request.options.name))
        self.key = "toy"

    def fill(self, _prepared: Prepared) -> dict[str, FileRecord]:
        """Nothing: the engine has no weights."""
        return {}


BUILD = EngineBuild(recipe=Lazy("openai_bls_toy.recipe:ToyRecipe"))
