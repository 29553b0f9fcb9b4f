"""Names in the guides of other servers: options and settings, and what stands for each of them here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

BUILD = {
    "--use_weight_only": "give --quant int8_weight_only, or int4_weight_only",
    "--weight_only_precision": "give --quant int8_weight_only, int4_weight_only or awq",
    "--per_group": "give --quant awq: GPTQ is not built here",
    "--per_channel": "give --quant int8_sq, which is by channel and by token",
    "--per_token": "give --quant int8_sq, which is by channel and by token",
    "--smoothquant": "give --quant int8_sq, whose strength is 0.5",
    "--use_smooth_quant": "give --quant int8_sq",
    "--qformat": "give --quant",
    "--int8_kv_cache": "give --kv-cache-dtype int8",
    "--fp8_kv_cache": "give --kv-cache-dtype fp8",
    "--enable_fp8": "give --quant fp8",
    "--model_dir": "give --model",
    "--hf_model_dir": "give --model",
    "--checkpoint_dir": "give --model with the Hugging Face checkpoint: there is no step between",
    "--output_dir": "the engine goes into --model-repository",
    "--engine_dir": "the engine goes into --model-repository",
    "--use_gpt_attention_plugin": "give --gpt-attention-plugin",
    "--use_gemm_plugin": "give --gemm-plugin",
    "--use_inflight_batching": "leave it out: batching is always in flight",
    "--paged_kv_cache": "leave it out: the KV cache is always paged",
    "--remove_input_padding": "leave it out: it is on (--plugin remove_input_padding=disable turns it off)",
    "--enable_context_fmha": "leave it out: it is on (--plugin context_fmha=disable turns it off)",
    "--context_fmha": "give --plugin context_fmha=enable or disable",
    "--world_size": "give --tp-size",
    "--use_custom_all_reduce": "leave it out: TensorRT-LLM chooses the all-reduce by itself",
    "--use_lookup_plugin": "leave it out: there is none any more",
    "--use_rmsnorm_plugin": "leave it out: there is none any more",
    "--calib_dataset": "give --calib-dataset",
    "--output": "the engine goes into --model-repository",
    "--model_type": "leave it out: config.json says it",
    "--model-type": "leave it out: config.json says it",
    "--model_version": "leave it out: config.json says it",
    "--reduce_fusion": "give --plugin reduce_fusion=enable or disable",
    "--context_fmha_fp32_acc": "give --plugin context_fmha_fp32_acc=enable or disable",
    "--tokens_per_block": "give --plugin tokens_per_block=64, or another number",
    "--kv_cache_type": "leave it out: the KV cache is always paged",
    "--tokenizer_dir": "the tokenizer is taken from --model (put its files beside the weights)",
    "--lora_plugin": "leave it out: --lora-dir turns it on",
    "--lora_target_modules": "leave it out: it is read from the adapter that --lora-dir names",
    "--logits_dtype": "leave it out: logits are float32",
}
"""Options of convert_checkpoint.py, quantize.py, trtllm-build and build.py."""

SERVE = {
    "--model_repo": "give --model-repository",
    "--log": "give --log-file FILE, and further options of tritonserver after --, such as -- --log-verbose=3",
    "--multi-model": "give --mode orchestrator, for engines of the C++ backend; others need nothing",
    "--force": "leave it out: only the ports must be free",
    "--tritonserver": "leave it out: the server is found, in an NGC image and in the environment",
    "--no-mpi": "leave it out: one rank takes no mpirun",
    "--grpc-address": "give --host",
    "--http-address": "give --host",
    "--metrics-config": "give it after --, as a further option of tritonserver",
    "--port": "give --openai-port for /v1, --http-port and --grpc-port for Triton's own",
    "--tensor-parallel-size": "give --tp-size",
    "--pipeline-parallel-size": "give --pp-size",
    "--quantization": "give --quant",
    "--max-num-seqs": "give --max-batch-size",
    "--gpu-memory-utilization": "give it to vLLM in the file of --extra-engine-args",
    "--lora-modules": "give --lora-dir NAME=DIR",
    "--chat-template": "put it into the checkpoint's folder, as chat_template.jinja",
    "--tool-call-parser": "the format is told by the chat template; OPENAI_BLS_TOOL_CALL_PARSER sets another",
    "--reasoning-parser": "the format is told by the chat template; OPENAI_BLS_REASONING_PARSER sets another",
}
"""Options of launch_triton_server.py, tritonserver and `vllm serve`."""

SETTINGS = {
    "decoupled_mode": "it is a setting of engines: tensorrt_llm.decoupled_mode, which the models around it follow",
    "batching_strategy": "leave it out: batching is always in flight (with --backend cpp it is gpt_model_type)",
    "gpt_model_type": "leave it out: batching is always in flight",
    "engine_dir": "leave it out: the build puts the engine into the model's folder",
    "gpt_model_path": "leave it out: the build puts the engine into the model's folder",
    "tokenizer_dir": "leave it out: the build puts the tokenizer into the model's folder",
    "tokenizer_type": "leave it out: the build puts the tokenizer into the model's folder",
    "triton_backend": "give --backend python or cpp to openai-bls build",
    "triton_max_batch_size": "give max_batch_size",
    "max_beam_width": "give --max-beam-width to openai-bls build",
    "preprocessing_instance_count": "give preprocessing.tokenizer_threads",
    "postprocessing_instance_count": "give postprocessing.instances",
    "bls_instance_count": "leave it out: any number of requests run at once",
    "accumulate_tokens": "leave it out: streams are put together right without it",
    "tensorrt_llm_model_name": "leave it out: a request's model chooses",
    "gpu_device_ids": "set CUDA_VISIBLE_DEVICES in front of serve (a parameter with --backend cpp only)",
    "logits_datatype": "leave it out: logits are float32",
}
"""Parameters that fill_template.py fills in."""


def refuse(parser: argparse.ArgumentParser, arguments: Sequence[str], names: Mapping[str, str]) -> None:
    """End the program over an option that has another name here, or none, if `arguments` has one.

    Args:
        parser: parser that knows the program's options and ends the program.
        arguments: the command line.
        names: option → what stands for it.
    """
    known = {option for action in parser._actions for option in action.option_strings}
    for argument in arguments:
        name = argument.partition("=")[0]
        if not name.startswith("--") or name in known:
            continue
        written = name.replace("_", "-")
        if name in names:
            parser.error(f"{name} is an option of another server; {names[name]}")
        if written in known:
            parser.error(f"{name} is written {written} here")
