"""Steps of a load, read from the lines that vLLM's processes log."""

from __future__ import annotations

import re

from openai_bls.engines.plugin import LoadStep

IMPORTING = "importing vLLM"
"""Step that begins a load; a line of ours, for vLLM's processes log nothing before it is imported."""
# In the order of a load. Lines of vLLM 0.24 to 0.33; where another version says something else, less is shown.
_STEPS = (
    (IMPORTING, IMPORTING),
    ("Initializing a V1 LLM engine", "starting vLLM's processes"),
    ("Starting to load model", "loading weights"),
    ("checkpoint shards:", "loading weights"),
    ("Model loading took", "warming up"),
    ("Capturing CUDA graphs", "capturing CUDA graphs"),
)
_ORDER = tuple(dict.fromkeys(step for _, step in _STEPS))
_PARTS = re.compile(r"\| (\d+/\d+) \[")
"""Parts of a step that are done, in a line of tqdm."""


def load_step(line: str) -> LoadStep | None:
    """The step that a line of the log tells of; None if it tells of none."""
    for sign, name in _STEPS:
        if sign in line:
            parts = _PARTS.search(line)
            return LoadStep(_ORDER.index(name), name, parts[1] if parts else "")
    return None
