"""Plug-in of the TensorRT-LLM engine."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="tensorrt_llm",
    title="TensorRT-LLM",
    load=Lazy("openai_bls.engines.tensorrt_llm.loading:load"),
    check_settings=Lazy("openai_bls.engines.tensorrt_llm.server_checks:check_settings"),
    load_memory=Lazy("openai_bls.engines.tensorrt_llm.server_checks:load_memory"),
)
