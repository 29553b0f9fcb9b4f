"""Plug-in of the null engine, which the server registers itself: the example for others."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="null",
    title="the null engine",
    load=Lazy("openai_bls.engines.null.loading:load"),
    record=Lazy("openai_bls.engines.null.record:NullSettings"),
    options=Lazy("openai_bls.engines.null.loading:NullOptions"),
    build=Lazy("openai_bls.builder.null:BUILD"),
    ignores_foreign_options=True,
    needs_manifest=False,
)
