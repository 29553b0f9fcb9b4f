"""Check and time both runners of the embedded engine on this machine: `python -m benchmarks.runners --out OUT`.

The golden answers of the demo checkpoint, alone and together; its tokens/s; and random models with sliding windows,
experts, capped scores and states, whose log-probabilities are held against plain forward passes in float32. The models
run in the device's usual type. Rounding alone moves log-probabilities, so the bound is what it does to a plain pass.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.asking import Asker
from benchmarks.children import in_child
from benchmarks.engine import ROOT, Variant, Work, gpu_versions, parse_variant, run_variant
from benchmarks.golden import check_golden
from benchmarks.machine import conditions
from benchmarks.options import levels
from benchmarks.report import MISSING, markdown_table
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls.engines.registry import create_engine

VARIANTS = (
    "batching:runner=continuous_batching",
    "sdpa:runner=continuous_batching,attention=sdpa",
    "eager:runner=continuous_batching,attention=eager",
    "dynamic:runner=dynamic_cache",
)
_SLIDING = {"sliding_window": 64, "max_window_layers": 0, "use_sliding_window": True}
_EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, Any]] = {
    "mistral": _SLIDING,
    "gemma2": _SLIDING | {"attn_logit_softcapping": 2.0},
    "gemma3_text": _SLIDING,
    "gpt_oss": _SLIDING | _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "qwen3_next": _EXPERTS,
    "mamba2": {"num_heads": 32, "n_groups": 1, "state_size": 32},
}
"""Model types, and what their configurations say beside the sizes."""
_SHARED = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "initializer_range": 0.08}
_VOCAB_SIZE, _MAX_MODEL_LEN = 4096, 512
_LENGTHS = (3, 300, 40, 65, 130, 17, 64, 200)
_NEW_TOKENS = 40
_SLACK = 1.5
"""Times the mean distance of a plain pass, up to which a runner's is rounding."""
_FLOAT32_DISTANCE = 1e-4
_WRONG = "this model cannot be served here"
"""Beginning of a refusal by the self-test."""


@dataclass
class Distance:
    """Log-probabilities of greedy tokens, held against float32: mean and largest distance."""

    model: str
    variant: str
    mean: float = 0.0
    largest: float = 0.0
    plain: float = 0.0
    """Mean of a plain pass in the type of the runner."""
    refused: str = ""

    @property
    def good(self) -> bool:
        """No further off than rounding explains, or refused for what it is and not by the self-test."""
        return self.mean <= _SLACK * self.plain + _FLOAT32_DISTANCE and not self.refused.startswith(_WRONG)


@dataclass
class Results:
    """Everything found so far."""

    made: dict[str, Any] = field(default_factory=dict)
    golden: dict[str, dict[str, Any]] = field(default_factory=dict)
    speed: list[Variant] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def make_model(model_type: str, folder: Path, hidden_size: int) -> None:
    """An engine with a random model of `model_type` in the version folder `folder`."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config_class = CONFIG_MAPPING[model_type]
    known = set(config_class().to_dict()) | {"num_attention_heads"}
    sizes = _SHARED | {
        "vocab_size": _VOCAB_SIZE,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "moe_intermediate_size": hidden_size,
        "shared_expert_intermediate_size": hidden_size,
        "num_hidden_layers": 4,
        "max_position_embeddings": _MAX_MODEL_LEN,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if model_type == "mamba2":
        sizes["head_dim"] = 2 * hidden_size // MODELS[model_type]["num_heads"]
    torch.manual_seed(0)
    chosen = {name: value for name, value in (sizes | MODELS[model_type]).items() if name in known}
    model = AutoModelForCausalLM.from_config(config_class(**chosen), dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder / "checkpoint")
    write_manifest(
        folder,
        Manifest(
            engine="transformers", model_name=model_type, max_model_len=_MAX_MODEL_LEN, max_batch_size=8, created=1
        ),
    )


def measure_distances(folder: Path, model_type: str, variants: list[Variant]) -> list[Distance]:
    """Of all variants, one after the other."""
    return [measure_distance(folder, model_type, variant) for variant in variants]


def measure_distance(folder: Path, model_type: str, variant: Variant) -> Distance:
    """How far the log-probabilities of an engine's greedy tokens are from plain passes, together and alone."""
    import torch

    numbers = random.Random(7)
    requests = [
        GenerationRequest(
            request_id=0,
            prompt_token_ids=[numbers.randrange(1, _VOCAB_SIZE) for _ in range(length)],
            max_tokens=_NEW_TOKENS,
            sampling=SamplingParams(temperature=0),
            logprobs=0,
        )
        for length in _LENGTHS
    ]
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    manifest = msgspec.json.decode((folder / "engine.json").read_bytes())
    (folder / "engine.json").write_bytes(msgspec.json.encode(manifest | {"dtype": dtype}))
    asker = Asker()
    try:
        engine = asker.engine = create_engine(folder, asker.on_step, variant.options)
    except EngineLoadError as error:
        return Distance(model_type, variant.name, refused=str(error).partition(". ")[0][:150])
    try:
        answers = [*asker.ask(requests), *asker.ask(requests[:2], at_once=1)]
    finally:
        engine.close()
    failed = [answer.error for answer in answers if answer.error]
    if failed:
        raise RuntimeError(failed[0])
    found = [answer.logprobs.token_logprobs for answer in answers]
    asked = [
        (request.prompt_token_ids, answer.tokens)
        for request, answer in zip([*requests, *requests[:2]], answers, strict=True)
    ]
    wanted, plain = (plain_logprobs(folder / "checkpoint", asked, kind) for kind in ("float32", dtype))
    off, rounding = (
        [abs(a - b) for ours, right in zip(rows, wanted, strict=True) for a, b in zip(ours, right, strict=True)]
        for rows in (found, plain)
    )
    return Distance(model_type, variant.name, statistics.mean(off), max(off), statistics.mean(rounding))


def plain_logprobs(checkpoint: Path, asked: list[tuple[list[int], list[int]]], dtype: str) -> list[list[float]]:
    """Log-probabilities of outputs after their prompts, by one pass of transformers' own model each."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="eager")
    model = model.to(device).eval()
    rows = []
    with torch.no_grad():
        for prompt, output in asked:
            logits = model(torch.tensor([prompt + output], device=device)).logits[0, len(prompt) - 1 : -1].float()
            rows.append(logits.log_softmax(-1).gather(-1, torch.tensor(output, device=device)[:, None])[:, 0].tolist())
    return rows


def on_a_gpu() -> bool:
    """There is one."""
    import torch

    return bool(torch.cuda.is_available())


def summary(results: Results, at: tuple[int, ...]) -> str:
    """The results as Markdown."""
    speed = [
        [one.name, *(f"{level.tokens_per_s:,.0f}" for level in one.levels), *[MISSING] * (len(at) - len(one.levels))]
        for one in results.speed
    ]
    golden = [
        [name, *(str(one[key]) for key in ("alone", "together", "answers"))] for name, one in results.golden.items()
    ]
    distances = [
        [
            one.model,
            one.variant,
            f"{one.mean:.1e}",
            f"{one.largest:.1e}",
            f"{one.plain:.1e}",
            one.refused or str(one.good),
        ]
        for one in results.distances
    ]
    parts = ["# Both runners", str(results.made)]
    for title, headers, body in (
        ("Golden answers", ("variant", "alone", "together", "answers"), golden),
        ("Tokens/s of the demo", ("variant", *(f"at {level}" for level in at)), speed),
        ("Distance to float32", ("model", "variant", "mean", "largest", "mean of a plain pass", "good"), distances),
    ):
        parts += [f"## {title}", markdown_table(headers, body)] if body else []
    return "\n\n".join([*parts, *results.failures]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runners", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--concurrency", type=levels, default="1,16", help="default %(default)s")
    parser.add_argument("--model", action="append", choices=MODELS, help="random models (default: all)")
    parser.add_argument("--variant", action="append", metavar="NAME:OPTION=VALUE,...", help=f"default: {VARIANTS}")
    parser.add_argument("--hidden-size", type=int, help="of the random models (default: 1024 on a GPU, else 128)")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo's answers and its speed")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each part (default %(default)s)")
    options = parser.parse_args(arguments)
    variants = [parse_variant(text) for text in options.variant or VARIANTS]
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="runners-"))
    results = Results(made=asdict(conditions("python -m benchmarks.runners", in_child(60, gpu_versions))))

    def attempt(what: str, function: Any, *given: Any) -> Any:
        try:
            return in_child(options.limit_s, function, *given)
        except (RuntimeError, TimeoutError) as error:
            results.failures.append(f"FAILED: {what}: {error}")

    def note() -> None:
        (options.out / "runners.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
        (options.out / "runners.md").write_text(summary(results, options.concurrency), encoding="utf-8")

    demo = work / "demo"
    if not options.no_demo:
        shutil.copytree(ROOT / "demo" / "checkpoint", demo / "checkpoint")
        manifest = Manifest(engine="transformers", model_name="demo", max_model_len=2048, max_batch_size=64, created=1)
        write_manifest(demo, manifest)
        for variant in variants:
            golden = attempt(f"golden {variant.name}", check_golden, demo, variant.options)
            if golden is not None:
                results.golden[variant.name] = golden
                if min(golden["alone"], golden["together"]) < golden["answers"]:
                    results.failures.append(f"FAILED: golden {variant.name}: {golden}")
            load = Work(requests_per_slot=4)
            timed = attempt(variant.name, run_variant, variant, demo, options.concurrency, load)
            results.speed += [timed] if timed is not None else []
            note()
    hidden_size = options.hidden_size or (1024 if in_child(60, on_a_gpu) else 128)
    for model_type in options.model or MODELS:
        folder = work / model_type
        attempt(f"making {model_type}", make_model, model_type, folder, hidden_size)
        found = attempt(model_type, measure_distances, folder, model_type, variants) if folder.is_dir() else None
        results.distances += found or []
        results.failures += [f"FAILED: {one}" for one in found or [] if not one.good]
        note()
    shutil.rmtree(work, ignore_errors=True)
    print(summary(results, options.concurrency))
    return int(bool(results.failures))


if __name__ == "__main__":
    sys.exit(main())
