"""Table of families: architecture, shape and class of the tokenizer, turns, and forms of calls and thoughts."""

from __future__ import annotations

from typing import NamedTuple

BACKEND = "PreTrainedTokenizerFast"


class Family(NamedTuple):
    """One family of chat models."""

    architecture: str
    """Name in `architectures.table.CASES`."""
    shape: str
    """Name in `tokenizer_families.FAMILIES`."""
    tokenizer_class: str
    """As tokenizer_config.json names it."""
    style: str
    """Name in `templates.STYLES`."""
    calls: str = ""
    """Name of the form of calls; empty has none."""
    thoughts: str = ""
    """Name of the form of thoughts; empty has none."""
    refused: str = ""
    """Part of the sentence that refuses the build; empty is served."""


FAMILIES: dict[str, Family] = {
    "AFM 4.5B": Family("arcee", "llama3", BACKEND, "chatml"),
    "Apertus": Family("apertus", "tekken", BACKEND, "apertus", "apertus", "apertus"),
    "Bailing (Ring)": Family("bailing_hybrid", "qwen2", BACKEND, "phi", "hermes", "think"),
    "Bamba": Family("bamba", "llama3", BACKEND, "chatml"),
    "BigBird-Pegasus": Family("bigbird_pegasus", "t5", BACKEND, "zephyr"),
    "BitNet": Family("bitnet", "llama3", BACKEND, "llama3"),
    "BlenderBot": Family("blenderbot", "gpt2 with a prefix space", BACKEND, "zephyr"),
    "BLOOMZ": Family("bloom", "gpt2", BACKEND, "zephyr"),
    "Command A": Family("cohere2", "gpt2", "CohereTokenizer", "cohere", "cohere_command", "cohere_command"),
    "Command A (MoE)": Family("cohere2_moe", "gpt2", BACKEND, "cohere", "cohere_command", "cohere_command"),
    "Command R": Family("cohere", "gpt2", "CohereTokenizer", "cohere"),
    "CPM-Ant": Family("cpmant", "words", BACKEND, "zephyr", refused="its answers are wrong"),
    "DBRX": Family("dbrx", "gpt2", "GPT2Tokenizer", "chatml"),
    "DeepSeek V2": Family("deepseek_v2", "deepseek", BACKEND, "deepseek"),
    "DeepSeek V3": Family("deepseek_v3", "deepseek", BACKEND, "deepseek", "deepseek_v3", "think"),
    "DeepSeek V3.1": Family("deepseek_v3", "deepseek", BACKEND, "deepseek", "deepseek_v31", "think"),
    "DeepSeek V3.2": Family("deepseek_v32", "deepseek", BACKEND, "deepseek", "deepseek_v32", "think"),
    "DeepSeek V4": Family("deepseek_v4", "deepseek", BACKEND, "deepseek", "deepseek_v4", "think"),
    "Dolly": Family("gpt_neox", "gpt2", "GPTNeoXTokenizer", "zephyr"),
    "dots.llm1": Family("dots1", "qwen2", "Qwen2Tokenizer", "chatml", "hermes"),
    "ERNIE 4.5": Family("ernie4_5", "llama2", "LlamaTokenizer", "vicuna"),
    "ERNIE 4.5 (MoE)": Family("ernie4_5_moe", "llama2", "LlamaTokenizer", "chatml", "hermes", "ernie45"),
    "EXAONE 4": Family("exaone4", "gpt2", BACKEND, "exaone", "hermes", "think"),
    "Falcon": Family("falcon (new decoder)", "gpt2", BACKEND, "falcon"),
    "Falcon H1": Family("falcon_h1", "gpt2", BACKEND, "chatml", "hermes"),
    "Falcon Mamba": Family("falcon_mamba", "gpt2", "GPTNeoXTokenizer", "chatml"),
    "FunctionGemma": Family("gemma3_text", "gemma", "GemmaTokenizer", "gemma", "functiongemma"),
    "Functionary": Family("llama (llama3 rope)", "llama3", BACKEND, "llama3", "functionary_v31"),
    "Gemma": Family("gemma", "gemma", "GemmaTokenizer", "gemma"),
    "Gemma 2": Family("gemma2", "gemma", "GemmaTokenizer", "gemma"),
    "Gemma 3n": Family("gemma3n_text", "gemma", "GemmaTokenizer", "gemma"),
    "Gemma 4": Family("gemma4_text", "gemma", "GemmaTokenizer", "gemma4", "gemma4", "gemma4"),
    "GigaChat 3": Family("youtu", "gpt2", BACKEND, "gigachat", "gigachat3"),
    "GigaChat 3.1": Family("youtu", "gpt2", BACKEND, "gigachat", "gigachat31"),
    "GLM 4": Family("glm4", "llama3", BACKEND, "glm"),
    "GLM 4.5": Family("glm4_moe", "llama3", BACKEND, "glm", "glm", "think"),
    "GLM 4.7 Flash": Family("glm4_moe_lite", "llama3", BACKEND, "glm", "glm", "think"),
    "GPT-2": Family("gpt2", "gpt2", "GPT2Tokenizer", "chatml"),
    "GPT-J": Family("gptj", "gpt2", "GPT2Tokenizer", "vicuna"),
    "gpt-oss": Family("gpt_oss", "llama3", BACKEND, "harmony", "harmony", "harmony"),
    "Granite 20B": Family("gpt_bigcode", "gpt2", "GPT2Tokenizer", "granite", "granite-20b-fc"),
    "Granite 3": Family("granite", "gpt2", "GPT2Tokenizer", "granite", "granite", "granite"),
    "Granite 4": Family("granitemoehybrid", "gpt2", "GPT2Tokenizer", "granite", "hermes"),
    "Helium": Family("helium", "t5", BACKEND, "chatml after a BOS"),
    "Hunyuan A13B": Family("hunyuan_v1_moe", "qwen2", BACKEND, "hunyuan", "hunyuan_a13b", "hunyuan_a13b"),
    "Hunyuan (dense)": Family("hunyuan_v1_dense", "qwen2", BACKEND, "hunyuan"),
    "Hy3": Family("hy_v3", "qwen2", BACKEND, "hunyuan", "hy_v3"),
    "Hy3 (preview)": Family("hy_v3", "qwen2", BACKEND, "hunyuan", "hy_v3_preview", "think"),
    "InternLM 3": Family("internlm3", "llama2", "LlamaTokenizer", "chatml after a BOS", "internlm"),
    "Jais 2": Family("jais2", "gpt2", "GPT2Tokenizer", "llama3"),
    "Jamba": Family("jamba", "llama2", "LlamaTokenizer", "chatml after a BOS", "hermes"),
    "Kimi Linear": Family("kimi_linear", "qwen2", BACKEND, "kimi", "kimi_k2", "think"),
    # transformers has no architecture of K3's: its form on that of the family's other model.
    "Kimi K3": Family("kimi_linear", "qwen2", BACKEND, "kimi", "kimi_k3", "kimi_k3"),
    "LFM2": Family("lfm2", "llama3", BACKEND, "chatml", "lfm2"),
    "LFM2 (MoE)": Family("lfm2_moe", "llama3", BACKEND, "chatml", "lfm2", "think"),
    "Llama 2": Family("llama", "llama2", "LlamaTokenizer", "inst"),
    "Llama 3.1": Family("llama (llama3 rope)", "llama3", BACKEND, "llama3", "llama3_json"),
    "Llama 4": Family("llama4_text", "llama3", BACKEND, "llama4", "pythonic"),
    "Mamba": Family("mamba", "gpt2", "GPTNeoXTokenizer", "zephyr"),
    "Mamba Codestral": Family("mamba2", "metaspace first", "LlamaTokenizer", "inst"),
    "MiniCPM 3": Family("minicpm3", "llama2", "LlamaTokenizer", "chatml after a BOS"),
    "MiniCPM 5": Family("llama (tied embeddings)", "llama3", BACKEND, "chatml after a BOS", "minicpm5", "think"),
    "MiniMax M1": Family("minimax", "gpt2", "GPT2Tokenizer", "minimax", "minimax_m1"),
    "MiniMax M2": Family("minimax_m2", "gpt2", "GPT2Tokenizer", "minimax", "minimax_m2", "think"),
    "MiniMax M3": Family("minimax_m3_vl_text", "gpt2", "GPT2Tokenizer", "minimax", "minimax_m3", "minimax_m3"),
    "Ministral 3": Family("ministral3", "tekken", BACKEND, "inst with prompts", "mistral_v13", "mistral"),
    "Mistral 7B (v0.3)": Family("mistral (no window)", "metaspace first", "LlamaTokenizer", "inst", "mistral"),
    "Mistral Nemo": Family("mistral (no window)", "tekken", BACKEND, "inst", "mistral_tekken"),
    "Mistral Small": Family("mistral", "tekken", BACKEND, "inst with prompts", "mistral_v11"),
    "Mixtral": Family("mixtral", "llama2", "LlamaTokenizer", "inst"),
    "MPT": Family("mpt", "gpt2", "GPTNeoXTokenizer", "chatml"),
    "Nanochat": Family("nanochat", "llama3", BACKEND, "phi"),
    "Nemotron Nano 2": Family("nemotron_h", "tekken", BACKEND, "nemotron", "nemotron_json", "think"),
    "Nemotron Mini": Family("nemotron", "metaspace never", BACKEND, "nemotron"),
    "OLMo": Family("olmo", "gpt2", "GPTNeoXTokenizer", "zephyr"),
    "OLMo 2": Family("olmo2", "llama3", "GPT2Tokenizer", "zephyr"),
    "OLMo 3 Think": Family("olmo3", "llama3", "GPT2Tokenizer", "chatml", thoughts="think"),
    "OPT": Family("opt", "gpt2", "GPT2Tokenizer", "zephyr"),
    "Pegasus": Family("pegasus", "t5", BACKEND, "zephyr"),
    "Persimmon": Family("persimmon", "t5", BACKEND, "vicuna"),
    "Phi 2": Family("phi", "gpt2", "GPT2Tokenizer", "chatml"),
    "Phi 3": Family("phi3", "phi3", "LlamaTokenizer", "phi"),
    "Phi 3.5 (MoE)": Family("phimoe", "phi3", "LlamaTokenizer", "phi"),
    "Phi 4 Mini": Family("phi3 (partial rotary)", "gpt2", "GPT2Tokenizer", "phi", "phi4_mini_json"),
    "ProphetNet": Family("prophetnet", "bert", BACKEND, "bare", refused="its answers are wrong"),
    "Qwen 2.5": Family("qwen2", "qwen2", "Qwen2Tokenizer", "chatml", "hermes"),
    "Qwen 3": Family("qwen3", "qwen2", "Qwen2Tokenizer", "chatml", "hermes", "think"),
    "Qwen 3 Coder": Family("qwen3_moe", "qwen2", "Qwen2Tokenizer", "chatml", "qwen3_coder"),
    "Qwen 3 Next": Family("qwen3_next", "qwen2", "Qwen2Tokenizer", "chatml", "hermes", "think"),
    "Qwen 3.5": Family("qwen3_5_text", "qwen2", "Qwen2Tokenizer", "chatml", "qwen3_coder", "think"),
    "RecurrentGemma": Family("recurrent_gemma", "gemma", "GemmaTokenizer", "gemma"),
    "RWKV Raven": Family("rwkv", "gpt2", "GPTNeoXTokenizer", "vicuna"),
    "Seed-OSS": Family("seed_oss", "qwen2", BACKEND, "seed", "seed_oss", "seed_oss"),
    "SmolLM 2": Family("llama (tied embeddings)", "gpt2", "GPT2Tokenizer", "chatml"),
    "SmolLM 3": Family("smollm3", "llama3", BACKEND, "chatml", "hermes", "think"),
    "Solar Open": Family("solar_open", "qwen2", BACKEND, "solar", "solar_open", "solar_open"),
    "StableLM 2": Family("stablelm", "gpt2", BACKEND, "chatml"),
    "StarChat 2": Family("starcoder2", "gpt2", "GPT2Tokenizer", "chatml"),
    "TinyLlama": Family("llama", "llama2", "LlamaTokenizer", "zephyr"),
    "Vicuna": Family("llama", "metaspace always", "LlamaTokenizer", "vicuna"),
    "WordPiece decoder": Family("mbart", "bert", BACKEND, "bare"),
    "XGLM": Family("xglm", "t5", "XGLMTokenizer", "zephyr"),
    "xLAM": Family("llama (yarn)", "llama3", BACKEND, "llama3", "xlam"),
    "Zamba 2": Family("zamba2", "llama2", "LlamaTokenizer", "chatml after a BOS"),
}
