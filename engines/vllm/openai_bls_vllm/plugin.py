"""Plug-in of the vLLM engine, which runs vLLM in a process of an interpreter that has it."""

from openai_bls.engines.plugin import EnginePlugin, Lazy

PLUGIN = EnginePlugin(
    name="vllm",
    title="vLLM",
    load=Lazy("openai_bls_vllm.loading:load"),
    record=Lazy("openai_bls_vllm.record:VllmRecord"),
    options=Lazy("openai_bls_vllm.options:VllmOptions"),
    options_place="--extra-engine-args of the build",
    check_start=Lazy("openai_bls_vllm.survey.start_check:check_start"),
    check_settings=Lazy("openai_bls_vllm.startup.arguments:require_settings"),
    load_memory=Lazy("openai_bls_vllm.startup.kv_cache:load_memory"),
    load_step=Lazy("openai_bls_vllm.startup.load_steps:load_step"),
    build=Lazy("openai_bls_vllm.recipe.engine_build:BUILD"),
    environment=Lazy("openai_bls_vllm.recipe.environment:ENVIRONMENT_OF_VLLM"),
    run_headless=Lazy("openai_bls_vllm.loading:run_headless"),
)
