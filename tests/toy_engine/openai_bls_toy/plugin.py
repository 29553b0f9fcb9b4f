"""Plug-in of the toy engine: CONTRIBUTING's recipe, followed to the letter."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="toy",
    title="the toy engine",
    load=Lazy("openai_bls_toy.engine:load"),
    options=Lazy("openai_bls_toy.engine:Options"),
    build=Lazy("openai_bls_toy.recipe:BUILD"),
)
