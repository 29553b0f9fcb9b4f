"""Lengths of an engine: tokens of a prompt and of a whole sequence, and what they mean for the model.

Beyond the model's positions `build` in tensorrt_llm/builder.py only warns (0.20 to 1.2), and `_init_max_seq_len` in
tensorrt_llm/_torch/pyexecutor/model_engine.py cuts the length down with a warning (1.0 to 1.2).
"""

from __future__ import annotations

from openai_bls.builder.options.build import DEFAULT_MODEL_LEN
from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings


def lengths(
    max_seq_len: int | None, own: TensorRtLlmOptions, positions: int | None, end: int | None
) -> tuple[int, int]:
    """Tokens of a prompt, and of prompt and output together.

    Args:
        max_seq_len: most tokens of prompt and output together, as given on the command line; None if not given.
        own: further options.
        positions: tokens that the model was made for.
        end: tokens at which its sequences end in this flow, if sooner.

    Raises:
        BuildError: they contradict each other.
    """
    default = min(filter(None, (positions, end)), default=DEFAULT_MODEL_LEN)
    most_input, most_output = own.max_input_len, own.max_output_len
    if max_seq_len is not None and most_output is not None:
        raise BuildError("--max-output-len and --max-seq-len say the same: give one of the two")
    if most_output is not None and most_input is not None:
        total = most_input + most_output
    else:
        total = max_seq_len if max_seq_len is not None else default
    if total < 1:
        raise BuildError(f"--max-seq-len {total} is no length: give 1 or more")
    if most_input is None:
        # A request has at least one token of output.
        most_input = total - (most_output or 1) if total > 1 else 1
    if most_input < 1:
        raise BuildError(f"--max-output-len {most_output} leaves no room for a prompt in {total} tokens")
    if most_input > total:
        whose = "of --max-seq-len" if max_seq_len is not None else "that the model was made for: give --max-seq-len too"
        raise BuildError(f"--max-input-len {most_input} is more than the {total} tokens {whose}")
    return most_input, total


def findings(own: TensorRtLlmOptions, flow: Flow, total: int, positions: int | None, end: int | None) -> Findings:
    """Findings on sequences of `total` tokens; the other arguments are those of `lengths`."""
    typed = f"--max-seq-len {total}"
    if own.max_input_len is not None and own.max_output_len is not None:
        typed = f"--max-input-len {own.max_input_len} and --max-output-len {own.max_output_len}"
    if end is not None and total >= end:
        ends = f"sequences end at {end:,} tokens: the {flow} flow does not have the model's attention windows"
        if total > end:
            return Findings(problems=(f"{typed}: {ends}; lower it",))
        return Findings(notes=(ends,) if positions is None or positions > end else ())
    if positions is None or total <= positions:
        return Findings()
    beyond = f"{typed}: {total:,} tokens are beyond the {positions:,} that the model was made for"
    if flow == "pytorch":
        cut = "and the PyTorch flow cuts sequences off there: lower it, or take --flow tensorrt"
        return Findings(problems=(f"{beyond}, {cut}",))
    return Findings(notes=(f"{beyond}: TensorRT-LLM builds it with a warning, and text gets worse beyond them",))
