"""Plug-in of the vLLM engine, which runs vLLM in a process of an interpreter that has it."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="vllm",
    title="vLLM",
    load=Lazy("openai_bls.engines.vllm.loading:load"),
    record=Lazy("openai_bls.engines.vllm.record:VllmRecord"),
    options=Lazy("openai_bls.engines.vllm.options:VllmOptions"),
    options_place="--extra-engine-args of the build",
    check_start=Lazy("openai_bls.engines.vllm.survey.start_check:check_start"),
    check_settings=Lazy("openai_bls.engines.vllm.startup.arguments:require_settings"),
    load_memory=Lazy("openai_bls.engines.vllm.startup.kv_cache:load_memory"),
    load_step=Lazy("openai_bls.engines.vllm.startup.load_steps:load_step"),
    build=Lazy("openai_bls.builder.vllm.engine_build:BUILD"),
    environment=Lazy("openai_bls.builder.vllm.environment:ENVIRONMENT_OF_VLLM"),
    run_headless=Lazy("openai_bls.engines.vllm.loading:run_headless"),
)
