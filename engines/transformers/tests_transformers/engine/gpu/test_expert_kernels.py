"""Mixtures of experts against plain PyTorch: on a GPU, or elsewhere by Triton's interpreter (see conftest.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from openai_bls_transformers.gpu import expert_kernels
from openai_bls_transformers.gpu.expert_kernels import Clamp, Experts
from tests.paths import COMPILED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter multiplies bfloat16 wrongly


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DTYPE, device=DEVICE)


def mixed(x: torch.Tensor, experts: Experts, chosen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The sum in float32."""
    out = torch.zeros(x.shape, device=x.device)
    for token, row in enumerate(x.float()):
        for expert, score in zip(chosen[token].tolist(), scores[token].float(), strict=True):
            both = layer(row, experts.gate_up, experts.gate_up_bias, expert)
            gate, up = (both[::2], both[1::2]) if experts.interleaved else both.chunk(2, -1)
            if experts.clamp is None:
                between = functional.silu(gate) * up
            else:
                alpha, limit = experts.clamp
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
                between = (up + 1) * gate * torch.sigmoid(alpha * gate)
            out[token] += score * layer(between, experts.down, experts.down_bias, expert)
    return out


def layer(row: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    return functional.linear(row, weight[expert].float(), None if bias is None else bias[expert].float())


def choice(tokens: int, experts: int, top: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.stack([torch.randperm(experts)[:top] for _ in range(tokens)])
    scores = torch.rand(tokens, top).softmax(-1)
    return chosen.to(DEVICE, torch.int32), scores.to(DEVICE, dtype)


SHAPES = [
    (1, 8, 2, 96, 16),
    (1, 6, 3, 64, 20),
    (2, 8, 2, 96, 80),
    (16, 5, 2, 64, 20),
    (17, 8, 2, 96, 80),  # tiles that are not full
    (60, 2, 1, 64, 32),  # several tiles of an expert
    (40, 6, 6, 32, 16),
    (132, 9, 8, 16, 16),  # pairs that several programs count
]
"""Tokens, experts and those of a token, size and inner size of a layer."""


SUMS = [(form, *shape) for form in ("plain", "gpt-oss") for shape in SHAPES]
# Only the sums read scores, which have a kernel for one token and one for more.
SUMS += [("float32 scores", *shape) for shape in SHAPES[1:3]]


@pytest.mark.parametrize(("form", "tokens", "experts", "top", "size", "inner"), SUMS)
def test_sums(form: str, tokens: int, experts: int, top: int, size: int, inner: int) -> None:
    torch.manual_seed(0)
    x, gate_up, down = normal(tokens, size), normal(experts, 2 * inner, size), normal(experts, size, inner)
    weights = Experts(gate_up * size**-0.5, down * inner**-0.5)
    if form == "gpt-oss":
        clamp = Clamp(1.702, 1.0)  # a limit that many numbers pass
        weights = Experts(*weights[:2], normal(experts, 2 * inner), normal(experts, size), True, clamp)
    chosen, scores = choice(tokens, experts, top, torch.float32 if form == "float32 scores" else DTYPE)
    found = expert_kernels.mix(x, weights, chosen, scores)
    assert found.dtype == DTYPE
    torch.testing.assert_close(found.float(), mixed(x, weights, chosen, scores), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("experts", "top"), [(8, 2), (6, 3), (5, 5), (4, 1)])
@pytest.mark.parametrize("normalized", [True, False])
def test_choices(experts: int, top: int, normalized: bool) -> None:
    torch.manual_seed(0)
    logits = normal(7, experts) * 4
    scores, chosen = expert_kernels.choose(logits, top, normalized=normalized, dtype=torch.float32)
    wanted, places = logits.float().softmax(-1).topk(top)
    if normalized:
        wanted = wanted / wanted.sum(-1, keepdim=True)
    torch.testing.assert_close(scores, wanted)
    assert torch.equal(logits.gather(1, chosen), logits.gather(1, places))


def test_no_token_chooses_an_expert_twice() -> None:
    logits = torch.zeros(5, 6, dtype=DTYPE, device=DEVICE)
    logits[1] = torch.inf
    logits[2] = -torch.inf
    logits[3] = torch.nan
    logits[4, :5] = -torch.inf
    scores, chosen = expert_kernels.choose(logits, 4, normalized=True, dtype=DTYPE)
    assert chosen[:4].tolist() == [[0, 1, 2, 3]] * 4  # of equals the first
    assert chosen[4].tolist() == [5, 0, 1, 2]
    assert scores[4].tolist() == [1, 0, 0, 0]
    assert scores[3].isnan().all()  # which what comes of the token shows


def test_many_tokens_need_no_list_of_theirs_to_be_full() -> None:
    """Tiles of experts that nobody chose, and columns that are left over, write nothing."""
    torch.manual_seed(0)
    x, experts = normal(20, 32), Experts(normal(40, 32, 32), normal(40, 32, 16))
    chosen = torch.full((20, 1), 39, dtype=torch.int32, device=DEVICE)
    order, owners = expert_kernels._ordered(chosen, 40, 16)
    assert owners.tolist() == [39, 39] + [-1] * (len(owners) - 2)
    assert order[:32].tolist() == [*range(20), *[20] * 12]
    scores = torch.ones(20, 1, dtype=DTYPE, device=DEVICE)
    found = expert_kernels.mix(x, experts, chosen, scores)
    wanted = mixed(x, experts, chosen, scores)
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("shared_kib", [227, 163, 99, 64])
def test_tiles_fit_the_memory_that_programs_share(shared_kib: int, gated: bool) -> None:
    tiles = [pair[not gated] for pair in (expert_kernels._FEW, *expert_kernels._TILES.values(), expert_kernels._MANY)]
    for tile in tiles:
        found = tile.fitting(shared_kib * 1024, gated=gated)
        each = 2 * found.block * (found.rows + found.outputs * (1 + gated))
        assert each * found.stages <= shared_kib * 1024
        assert found._replace(block=tile.block, stages=tile.stages) == tile
        assert found == tile or shared_kib < 227


def test_what_is_taken() -> None:
    x, chosen, scores = normal(3, 8), torch.zeros(3, 2, dtype=torch.int64), normal(3, 2)
    assert expert_kernels.takes(x, chosen, scores)
    assert expert_kernels.takes(x, chosen, scores.float())
    assert not expert_kernels.takes(x.float(), chosen, scores)
    assert not expert_kernels.takes(x[:0], chosen[:0], scores[:0])
    assert not expert_kernels.takes(x, chosen, scores.double())
    assert not expert_kernels.takes(normal(8, 3).T, chosen, scores)


_COMPILE_FOR_HOPPER = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from openai_bls_transformers.gpu import dependent_launch, expert_kernels

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}

def kind(one):
    return TYPES[one.dtype] if isinstance(one, torch.Tensor) else "fp32" if isinstance(one, float) else "i32"

def compiled(kernel, grid):
    def launch(*arguments, **named):
        options = {name: named.pop(name) for name in ("num_warps", "launch_pdl") if name in named}
        given = dict(zip(kernel.arg_names, arguments)) | named
        signature = {name: kind(one) for name, one in given.items()}
        constants = {name: one for name, one in given.items() if name.isupper() or one is None}
        signature |= dict.fromkeys(constants, "constexpr")
        values = {(kernel.arg_names.index(name),): one for name, one in constants.items()}
        source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, values, {})
        found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        print(kernel.__name__, "wgmma.mma_async" in found.asm["ptx"])
    return launch

def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)

JITFunction.__getitem__ = compiled
dependent_launch.options = lambda device: {"DEPENDENT": True, "launch_pdl": True}
for is_gpt_oss in (False, True):
    for tokens, experts, top, size, inner in json.loads(sys.argv[1]):
        expert_kernels.choose(zeros(tokens, experts), top, normalized=True, dtype=torch.bfloat16)
        chosen = torch.zeros(tokens, top, dtype=torch.int64)
        weights = expert_kernels.Experts(zeros(experts, 2 * inner, size), zeros(experts, size, inner))
        if is_gpt_oss:
            biases = {"gate_up_bias": zeros(experts, 2 * inner), "down_bias": zeros(experts, size)}
            weights = weights._replace(**biases, interleaved=True, clamp=expert_kernels.Clamp(1.702, 7.0))
        expert_kernels.mix(zeros(tokens, size), weights, chosen, zeros(tokens, top))
"""


def test_kernels_compile_for_hopper() -> None:
    """Which the interpreter, that knows no types, does not show."""
    sizes = [
        (1, 60, 4, 96, 48),
        (3, 60, 4, 96, 48),  # sizes that are no multiples of blocks
        (900, 8, 2, 96, 48),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(COMPILED)}
    command = [sys.executable, "-c", _COMPILE_FOR_HOPPER, json.dumps(sizes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = [line.replace("_kernel False", "").replace("_kernel True", " wgmma") for line in done.stdout.splitlines()]
    one, few = ["choose", "one_gate", "one_down"], ["choose", "products", "products wgmma", "sum"]
    many = ["choose", "count", "order", "products wgmma", "products wgmma", "sum"]
    assert found == [*one, *few, *many] * 2
