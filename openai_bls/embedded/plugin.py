"""Plug-in of the embedded engine, which runs checkpoints with transformers."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="transformers",
    title="transformers",
    load=Lazy("openai_bls.embedded.loading:load"),
    record=Lazy("openai_bls.embedded.record:EmbeddedRecord"),
    options=Lazy("openai_bls.embedded.options:EngineOptions"),
    ignores_foreign_options=True,
    problem=Lazy("openai_bls.embedded.checks:problem"),
    check_settings=Lazy("openai_bls.embedded.checks:check_settings"),
    load_memory=Lazy("openai_bls.embedded.checks:load_memory"),
    build=Lazy("openai_bls.builder.embedded.engine_build:BUILD"),
    findings=Lazy("openai_bls.embedded.torch_build:findings"),
)
