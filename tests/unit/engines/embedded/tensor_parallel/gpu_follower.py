"""Process of a rank that does on the CPU what it would do on a GPU, but for streams and graphs."""

import sys
from typing import Any

import pytest

from openai_bls.engines.embedded import continuous_batching, gpu, model_loader
from openai_bls.engines.embedded.gpu import fused_layers, paged_attention
from openai_bls.engines.embedded.lora_layers import LoraLayers
from openai_bls.engines.embedded.tensor_parallel import follower, fused_sums
from tests.unit.engines.embedded.gpu import reference_kernels
from tests.unit.engines.embedded.gpu.test_fused_layers import replace_kernels
from tests.unit.engines.embedded.gpu.test_paged_attention import ReplayingRunner
from tests.unit.engines.embedded.overlapping import overlap


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Overlapping steps, paged attention, fused layers, and steps that are captured and replayed."""
    overlap(patch)
    for name in ("attention_kernels", "prompt_attention"):
        patch.setitem(sys.modules, f"openai_bls.engines.embedded.gpu.{name}", reference_kernels)
        patch.setattr(gpu, name, reference_kernels, raising=False)

    replace_kernels(patch)

    def set_attention(model: Any, *_: Any) -> None:
        paged_attention.use(model, "paged")
        fused_layers.fuse(model)
        fused_sums.fuse(model)
        assert fused_layers.narrows(model)

    patch.setattr(model_loader, "_set_attention", set_attention)
    patch.setattr(continuous_batching, "CudaGraphRunner", ReplayingRunner)
    # A captured graph runs all of its operations, whatever a step holds.
    patch.setattr(LoraLayers, "_always", property(lambda self: True, lambda self, value: None), raising=False)


if __name__ == "__main__":
    as_on_a_gpu(pytest.MonkeyPatch())
    follower.main(sys.argv[1:])
