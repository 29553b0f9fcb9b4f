"""`tensorrt_llm._torch.models`: its import registers the model classes."""

from __future__ import annotations

from tensorrt_llm._torch.models import modeling_utils


class AutoModelForCausalLM:
    """Chooses among the registered classes."""


for _name in (
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
    "Llama4ForConditionalGeneration",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
):
    modeling_utils.MODEL_CLASS_MAPPING[_name] = AutoModelForCausalLM
