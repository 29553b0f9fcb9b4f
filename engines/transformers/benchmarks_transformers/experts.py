"""A mixture of experts by the fused kernels and by transformers' own products: one layer, and the engine end to end.

`python -m benchmarks_transformers.experts`

Weights are drawn on the GPU, layers alike as in `random_checkpoint`, so nothing is read from a disk. The engine is
driven directly, in a process for each kind, with prompts of random ids and of the words that `benchmarks` sends to
servers, in the demo's chat template: such prompts are more alike, and so are the experts that they go to.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.clients.target import prompt_text
from benchmarks.support import random_checkpoint
from benchmarks.support.asking import Asker, greedy
from benchmarks.support.checkpoint_shapes import DEMO, SHAPES, configuration
from benchmarks.support.children import attempt, in_child
from benchmarks.support.engine import Level, Variant, Work, measured, run_level
from benchmarks.support.options import levels
from benchmarks.support.report import markdown_table
from benchmarks_transformers import builds
from benchmarks_transformers.build_report import Result, speed_table

_ROUNDS = 12
"""Calls of a layer in a CUDA graph, each with its own choice of experts."""
_PROMPTS = 256, 1024
"""Tokens of prompts that come alone."""
_CLASSES = {"qwen3_moe": "Qwen3MoeExperts", "gpt_oss": "GptOssExperts"}
_FEW = 24
"""Experts that tokens which are alike go to."""


def layer(like: str, tokens: Sequence[int]) -> list[list[str]]:
    """Rows of a table: microseconds of one layer's experts, with all and with a few of them chosen."""
    import torch

    from openai_bls_transformers.model import fused_experts

    plain, fused = (_experts(like) for _ in range(2))
    if not fused_experts.fuse_experts(fused):
        raise RuntimeError("the experts are not fused")
    count, size = len(plain.down_proj), plain.config.hidden_size
    bytes_each = (plain.gate_up_proj.nbytes + plain.down_proj.nbytes) / count
    rows = []
    for among in (count, _FEW):
        for number in tokens:
            x = torch.randn(number, size, dtype=torch.bfloat16, device="cuda")
            choices = [_choice(number, count, among, plain.config.num_experts_per_tok) for _ in range(_ROUNDS)]
            chosen = sum(len(experts.unique()) for experts, _ in choices) / _ROUNDS
            both = [
                _graph_us([functools.partial(module.forward, x, *choice) for choice in choices])
                for module in (fused, plain)
            ]
            read = chosen * bytes_each / both[0] / 1e6
            times = f"{both[1] / both[0]:.2f}"
            rows.append([f"{number} of {among}", f"{chosen:.0f}", *(f"{us:.1f}" for us in both), times, f"{read:.2f}"])
    return rows


def _experts(like: str) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(SHAPES[like].family, **SHAPES[like].sizes)
    config._experts_implementation = "grouped_mm"  # which models choose themselves
    torch.manual_seed(0)
    code = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    with torch.device("cuda"):
        module = getattr(code, _CLASSES[config.model_type])(config).to(torch.bfloat16).requires_grad_(False)
    for weight in module.parameters():
        weight.data.normal_(0, weight.shape[-1] ** -0.5)
    return module


def _choice(tokens: int, experts: int, among: int, top: int) -> tuple[Any, Any]:
    """Experts and scores of random tokens."""
    import torch

    logits = torch.randn(tokens, experts, device="cuda")
    logits[:, torch.randperm(experts, device="cuda")[among:]] -= 100
    scores, chosen = logits.softmax(-1).topk(top)
    return chosen, scores.to(torch.bfloat16)


def _graph_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of each call within a CUDA graph of all, the best of five."""
    import torch

    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        calls[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        best = math.inf
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end))
    return best * 1e3 / len(calls)


def engine(like: str, fused: bool, concurrency: Sequence[int], limit_s: float) -> Iterator[list[Result]]:
    """The engine with random ids and with words; what came so far after every level."""
    from openai_bls.engines.registry import create_engine
    from openai_bls_transformers.model import fused_layers, model_loader

    model_loader.read_model = functools.partial(_drawn, like)
    if not fused:
        vars(fused_layers).update(dict.fromkeys(("fuse_experts", "fuse_router"), lambda module: 0))
    name = "fused" if fused else "plain"
    plan = builds.Plan(concurrency, 128, _PROMPTS, limit_s)
    asker = Asker()
    with tempfile.TemporaryDirectory(prefix="experts-") as work:
        checkpoint = Path(work) / like
        checkpoint.mkdir()
        (checkpoint / "config.json").write_bytes(msgspec.json.encode(configuration(like)))
        for file in random_checkpoint._TOKENIZER_FILES:
            shutil.copyfile(DEMO / file, checkpoint / file)
        version_dir = builds.Build(name).write(Path(work), checkpoint, max(concurrency), plan.max_model_len)
        started = time.monotonic()
        made: Any = create_engine(version_dir, asker.on_step, plan.options)
        asker.engine, load_s = made, time.monotonic() - started
        results = [Result(Variant(f"{name}, {kind}", plan.options, load_s)) for kind in ("random ids", "words")]
        try:
            for result, ask in zip(results, (_random_ids, _words), strict=True):
                for level in concurrency:
                    ask(asker, level, 8, limit_s)  # whatever is made on first use
                    result.speed.levels.append(ask(asker, level, 128, limit_s))
                    print(result.speed.name, result.speed.levels[-1], file=sys.stderr, flush=True)
                    yield results
            results[0].prompts_ms = {length: builds.prompt_ms(asker, length, limit_s) for length in _PROMPTS}
            yield results
        finally:
            made.close()


def _drawn(like: str, folder: Path, manifest: Any, device: Any, implementation: str | None) -> Any:
    """A model with the weights of `random_checkpoint.write`, but for the order in which they are drawn.

    On a CPU it is in float32, as the engine has it there.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    attention = {} if implementation is None else {"attn_implementation": implementation}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **attention)
    generator, drawn, state = torch.Generator(device.type).manual_seed(0), {}, {}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, tensor in model.state_dict().items():
        kind = random_checkpoint._LAYER.sub("", name)
        if kind not in drawn:
            is_output = name == "lm_head.weight"
            made = random_checkpoint._random(name, tuple(tensor.shape), device.type, generator, 1.0, is_output)
            drawn[kind] = made.to(dtype)
        state[name] = drawn[kind].clone()
    del drawn
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.to(device).eval()


def _random_ids(asker: Asker, level: int, tokens: int, limit_s: float) -> Level:
    return run_level(asker, Work(64, tokens, limit_s=limit_s), level, max(4, (3 if tokens > 8 else 1) * level))


def _words(asker: Asker, level: int, tokens: int, limit_s: float) -> Level:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    numbers = random.Random(f"{level} {tokens}")
    requests = []
    for _ in range(max(4, (3 if tokens > 8 else 1) * level)):
        message = {"role": "user", "content": prompt_text(34, numbers)}
        ids = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
        requests.append(greedy(ids, tokens))
    return measured(asker, requests, level, limit_s)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks_transformers.experts", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--shape",
        choices=[name for name in SHAPES if SHAPES[name].family in _CLASSES],
        default="qwen3-30b-a3b",
        help="default %(default)s",
    )
    parser.add_argument("--tokens", type=levels, default="1,4,16,64,256,1024", help="of a layer (default %(default)s)")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="default %(default)s")
    parser.add_argument("--only", choices=("plain", "fused"), help="one kind of engine (default: both)")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each part (default %(default)s)")
    options = parser.parse_args(arguments)
    headers = ["tokens, experts", "chosen", "fused, us", "transformers, us", "times", "fused, TB/s of weights"]
    print(markdown_table(headers, in_child(options.limit_s, layer, options.shape, options.tokens)), flush=True)
    results: list[Result] = []
    for fused in (False, True) if options.only is None else (options.only == "fused",):
        given = engine, options.shape, fused, options.concurrency, options.limit_s
        found, problem = attempt(options.limit_s, *given)
        results += [replace(one, speed=replace(one.speed, error=problem)) for one in found or ()]
        if problem:
            print(problem, file=sys.stderr, flush=True)
    tables = [speed_table(results[kind::2], options.concurrency) for kind in range(2)]
    prompts = [[one.speed.name, *(f"{ms:.1f}" for ms, _ in one.prompts_ms.values())] for one in results[0::2]]
    tables.append(
        markdown_table(["TTFT ms of a prompt alone", *(f"{length:,} tokens" for length in _PROMPTS)], prompts)
    )
    print("\n\n".join(["", *tables]))
    return int(any(level.failed for one in results for level in one.speed.levels))


if __name__ == "__main__":
    sys.exit(main())
