"""Plug-in of the embedded engine, which runs checkpoints with transformers."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="transformers",
    title="transformers",
    load=Lazy("openai_bls_transformers.loading:load"),
    record=Lazy("openai_bls_transformers.record:EmbeddedRecord"),
    options=Lazy("openai_bls_transformers.options:EngineOptions"),
    ignores_foreign_options=True,
    problem=Lazy("openai_bls_transformers.checks:problem"),
    check_settings=Lazy("openai_bls_transformers.checks:check_settings"),
    load_memory=Lazy("openai_bls_transformers.checks:load_memory"),
    build=Lazy("openai_bls_transformers.recipe.engine_build:BUILD"),
    findings=Lazy("openai_bls_transformers.torch_build:findings"),
)
