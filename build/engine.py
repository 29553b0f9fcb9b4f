"""Build the engine: put a Hugging Face checkpoint into the model repository.

    python build/engine.py --model demo/checkpoint
    python build/engine.py --model Qwen/Qwen2.5-7B-Instruct --max-model-len 8192

Writes `tensorrt_llm/1/` (manifest and weights) and the `tokenizer/` of the other models. A second run with the same
checkpoint and settings does nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openai_bls.engine.manifest import EngineLoadError
from openai_bls.engine.package import BuildOptions, build

ROOT = Path(__file__).resolve().parent.parent


def parse(arguments: list[str] | None = None) -> BuildOptions:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="build/engine.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        default=str(ROOT / "demo" / "checkpoint"),
        help="Hugging Face directory or hub id (default: demo/checkpoint)",
    )
    parser.add_argument("--model-repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--engine", choices=("auto", "transformers", "null", "tensorrt_llm"), default="auto")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights; auto is float32 on a CPU and the checkpoint's own on a GPU",
    )
    parser.add_argument(
        "--max-model-len",
        "--max-seq-len",
        type=int,
        help="most tokens of prompt and output together (default: what the model was made for)",
    )
    parser.add_argument("--max-batch-size", type=int, default=64, help="sequences in flight")
    parser.add_argument("--served-model-name", help="name in the API (default: the directory's)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that the checkpoint holds")
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    given = parser.parse_args(arguments)
    return BuildOptions(
        model=given.model,
        model_repository=given.model_repository,
        engine="transformers" if given.engine == "auto" else given.engine,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_batch_size=given.max_batch_size,
        served_model_name=given.served_model_name,
        trust_remote_code=given.trust_remote_code,
        force=given.force,
    )


def main(arguments: list[str] | None = None) -> int:
    """Build; returns the exit status."""
    try:
        build(parse(arguments), lambda line: print(f"build: {line}", flush=True))
    except EngineLoadError as error:
        print(f"build/engine.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
