"""Build of a llama.cpp engine for `openai-bls build`."""

from __future__ import annotations

from openai_bls.builder.engine_build import EngineBuild, Offer, Wanted
from openai_bls.engines.plugin import Lazy


def offer(wanted: Wanted) -> Offer:
    """Takes GGUF files."""
    return Offer(20, "the model is a GGUF file") if wanted.gguf else Offer(0, "")


BUILD = EngineBuild(
    recipe=Lazy("openai_bls_llama_cpp.recipe.building:LlamaCppRecipe"),
    accepts=frozenset({"self_test", "max_tokens_in_kv_cache"}),
    refuse=Lazy("openai_bls_llama_cpp.recipe.options:refuse_foreign"),
    offer=Lazy("openai_bls_llama_cpp.recipe.engine_build:offer"),
    gguf=True,
)
