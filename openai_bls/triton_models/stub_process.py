"""Memory of a model's own stub process; called from model.py, never in a process that others share."""

from __future__ import annotations

import gc
import os
import sys

from openai_bls.core.memory import trim


def keep_torch_out() -> None:
    """Let transformers load tokenizers without torch: before transformers is imported.

    transformers imports torch wherever it finds it, also for a tokenizer, which never uses it: 180 MB and a second.
    Nothing in this process can import torch any more.
    """
    # Python's own way to say that a module cannot be had: `import torch` fails, `find_spec("torch")` is None.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    # Without torch it advises to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Texts come one at a time, for which a pool of threads, one for each core, does nothing.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def settle() -> None:
    """Give back what loading has left behind: once everything is loaded.

    malloc keeps freed memory; after a tokenizer of 150,000 tokens that is 5 to 30 MB.
    """
    gc.collect()
    trim()


def release() -> None:
    """Free what only reference cycles still hold: at the end of a model.

    A response sender of Triton's among it, freed while the interpreter ends, crashes the process.
    """
    gc.collect()
