"""Plug-in of the llama.cpp engine, which runs GGUF files on a CPU."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="llama_cpp",
    title="llama.cpp",
    load=Lazy("openai_bls_llama_cpp.loading:load"),
    record=Lazy("openai_bls_llama_cpp.record:LlamaCppRecord"),
    options=Lazy("openai_bls_llama_cpp.options:LlamaCppOptions"),
    options_place="docs/reference/settings.md",
    own_process=True,
    problem=Lazy("openai_bls_llama_cpp.library:problem"),
    check_settings=Lazy("openai_bls_llama_cpp.options:check_settings"),
    build=Lazy("openai_bls_llama_cpp.recipe.engine_build:BUILD"),
    load_memory=Lazy("openai_bls_llama_cpp.memory:load_memory"),
)
