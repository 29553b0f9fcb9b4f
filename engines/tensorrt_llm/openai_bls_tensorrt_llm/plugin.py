"""Plug-in of the TensorRT-LLM engine."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="tensorrt_llm",
    title="TensorRT-LLM",
    load=Lazy("openai_bls_tensorrt_llm.loading:load"),
    record=Lazy("openai_bls_tensorrt_llm.record:TensorRtLlmRecord"),
    check_settings=Lazy("openai_bls_tensorrt_llm.server_checks:check_settings"),
    jobs=Lazy("openai_bls_tensorrt_llm.legacy.ranks.jobs:JOBS"),
    triton_backend=Lazy("openai_bls_tensorrt_llm.legacy.cpp_backend:BACKEND"),
    build=Lazy("openai_bls_tensorrt_llm.recipe.engine_build:BUILD"),
    load_memory=Lazy("openai_bls_tensorrt_llm.server_checks:load_memory"),
)
