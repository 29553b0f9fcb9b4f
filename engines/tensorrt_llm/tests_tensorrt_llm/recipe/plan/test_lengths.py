"""Lengths: what is decided, what contradicts itself, and what lies beyond the model."""

from __future__ import annotations

import pytest

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings
from openai_bls_tensorrt_llm.recipe.plan.lengths import findings, lengths


@pytest.mark.parametrize(
    ("max_seq_len", "max_input_len", "max_output_len", "longest", "found"),
    [
        (None, None, None, 4096, (4095, 4096)),
        (None, None, None, None, (2047, 2048)),
        (1000, None, None, 4096, (999, 1000)),
        (1000, 700, None, 4096, (700, 1000)),
        (1000, 1000, None, 4096, (1000, 1000)),
        (None, 700, 300, 4096, (700, 1000)),
        (None, None, 300, 4096, (3796, 4096)),
        (None, 700, None, 4096, (700, 4096)),
        (1, None, None, 4096, (1, 1)),
    ],
)
def test_lengths(
    max_seq_len: int | None,
    max_input_len: int | None,
    max_output_len: int | None,
    longest: int | None,
    found: tuple[int, int],
) -> None:
    own = TensorRtLlmOptions(max_input_len=max_input_len, max_output_len=max_output_len)
    assert lengths(max_seq_len, own, longest, None) == found


@pytest.mark.parametrize(
    ("max_seq_len", "max_input_len", "max_output_len", "said"),
    [
        (1000, None, 300, "--max-output-len and --max-seq-len say the same"),
        (0, None, None, "--max-seq-len 0 is no length: give 1 or more"),
        (None, 5000, None, "--max-input-len 5000 is more than the 4096 tokens that the model was made for"),
        (None, None, 4096, "--max-output-len 4096 leaves no room for a prompt in 4096 tokens"),
        (1000, 1001, None, "--max-input-len 1001 is more than the 1000 tokens of --max-seq-len"),
    ],
)
def test_lengths_that_cannot_be(
    max_seq_len: int | None, max_input_len: int | None, max_output_len: int | None, said: str
) -> None:
    own = TensorRtLlmOptions(max_input_len=max_input_len, max_output_len=max_output_len)
    with pytest.raises(BuildError) as caught:
        lengths(max_seq_len, own, 4096, None)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("flow", "own", "total", "positions", "end", "kind", "says"),
    [
        # Two guides: Baichuan2 with 4096 + 1024 tokens, Llama 2 with 4096 + 2048.
        (
            "tensorrt",
            TensorRtLlmOptions(max_input_len=4096, max_output_len=1024),
            5120,
            4096,
            None,
            "notes",
            "--max-input-len 4096 and --max-output-len 1024: 5,120 tokens are beyond the 4,096 that the model was made",
        ),
        ("tensorrt", TensorRtLlmOptions(), 6144, 4096, None, "notes", "--max-seq-len 6144: 6,144 tokens are beyond"),
        ("pytorch", TensorRtLlmOptions(), 6144, 4096, None, "problems", "the PyTorch flow cuts sequences off there"),
        ("tensorrt", TensorRtLlmOptions(), 8192, 8192, 4096, "problems", "--max-seq-len 8192: sequences end at 4,096"),
        ("tensorrt", TensorRtLlmOptions(), 4096, 8192, 4096, "notes", "sequences end at 4,096 tokens: the tensorrt"),
    ],
)
def test_lengths_beyond_the_model(
    flow: Flow, own: TensorRtLlmOptions, total: int, positions: int, end: int | None, kind: str, says: str
) -> None:
    """Engines get them with a warning, the PyTorch flow cuts them; where windows are missing they end."""
    found = findings(own, flow, total, positions, end)
    (sentence,) = getattr(found, kind)
    assert sentence.startswith(says) or says in sentence
    assert len(found.problems) + len(found.notes) == 1


def test_lengths_within_the_model() -> None:
    for end in (None, 4096):
        assert lengths(None, TensorRtLlmOptions(), 8192, end) == ((end or 8192) - 1, end or 8192)
        assert findings(TensorRtLlmOptions(), "tensorrt", 1024, 8192, end) == Findings()
    assert findings(TensorRtLlmOptions(), "pytorch", 99_999, None, None) == Findings()
