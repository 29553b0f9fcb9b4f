"""Steps of the real vLLM's scheduler with short passes; run by an interpreter that has vLLM.

::

    PYTHONPATH=.:engines/vllm <vllm's python> short_passes.py MODEL < cases.json

A case is `[size of a pass, [[step, tokens of a prompt], ...]]`, by the step before which a prompt comes. Prints for
each `[with short passes, vLLM's own]`: the steps, each as `{number of a prompt: tokens}`. No model runs: the scheduler
is told of one token for each prompt that is read, and of one for each request in progress.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from openai_bls_vllm.scheduling.scheduler import ShortPassScheduler

MAX_TOKENS = 3
BATCHED_TOKENS = 2048
BLOCK_SIZE = 16


def main() -> None:
    """Print the steps."""
    config = AsyncEngineArgs(
        model=sys.argv[1],
        max_model_len=2048,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=64,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = 10_000
    config.cache_config.block_size = BLOCK_SIZE
    found = []
    for size, prompts in json.load(sys.stdin):
        short = scheduler(ShortPassScheduler, config)
        short._pass_size = size
        found.append([steps(short, prompts), steps(scheduler(AsyncScheduler, config), prompts)])
    sys.stdout.write(json.dumps(found))


def scheduler(made: type, config: Any) -> Any:
    """A scheduler of that class over one layer's KV cache."""
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=10_000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return made(config, cache, StructuredOutputManager(config), block_size=BLOCK_SIZE)


def steps(running: Any, prompts: list[list[int]]) -> list[dict[int, int]]:
    """The steps until all requests have ended."""
    found: list[dict[int, int]] = []
    at = 0
    while at < len(prompts) or running.has_unfinished_requests():
        while at < len(prompts) and prompts[at][0] <= len(found):
            params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
            params.update_from_generation_config({}, eos_token_id=None)
            running.add_request(Request(str(at), [5] * prompts[at][1], params, None))
            at += 1
        output = running.schedule()
        found.append({int(name): tokens for name, tokens in output.num_scheduled_tokens.items()})
        running.update_from_output(output, answer(running, output))
    return found


def answer(running: Any, output: Any) -> Any:
    """What a model would say of a step."""
    names = list(output.num_scheduled_tokens)
    read = [running.requests[name].num_computed_tokens >= running.requests[name].num_prompt_tokens for name in names]
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[7] if done else [] for done in read],
    )


if __name__ == "__main__":
    main()
