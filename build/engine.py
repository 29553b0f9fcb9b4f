"""Build an engine: put a Hugging Face checkpoint into the model repository.

    python build/engine.py --model demo/checkpoint
    python build/engine.py --model Qwen/Qwen2.5-7B-Instruct --max-model-len 8192
    python build/engine.py --model Qwen/Qwen2.5-0.5B-Instruct --name small
    python build/engine.py --remove small

Writes the default engine into `tensorrt_llm/1/` (manifest and weights) and its tokenizer into the models that need it.
A second run with the same checkpoint and settings does nothing.

With --name it builds a further engine, which `openai_bls` serves beside the default one under its own model name:
`tensorrt_llm_<name>/`, `preprocessing_<name>/` and `openai_bls/1/tokenizer_<name>/`. These are the build's own: edits
in them last until it builds that engine again. The ensembles and `postprocessing` stay with the default engine.
Restart the server to serve it.

Engines on one machine share its cores and memory: each takes half of the cores and as much memory for its KV cache as
if it were alone. --max-tokens-in-kv-cache limits one engine's; OPENAI_BLS_ENGINE_* in the server's environment (such
as OPENAI_BLS_ENGINE_NUM_THREADS) apply to all of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from openai_bls.engine.manifest import EngineLoadError
from openai_bls.engine.package import BuildOptions, build, remove

ROOT = Path(__file__).resolve().parent.parent


class Removal(NamedTuple):
    """What --remove asks for."""

    model_repository: Path
    name: str


def parse(arguments: list[str] | None = None) -> BuildOptions | Removal:
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
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--name", help="build a further engine of this name (lower-case letters, digits, underscores)")
    which.add_argument("--remove", metavar="NAME", help="remove the further engine of this name, and build nothing")
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
    parser.add_argument(
        "--max-tokens-in-kv-cache",
        type=int,
        default=0,
        help="tokens of all sequences together (default: the engine chooses by the memory there is)",
    )
    parser.add_argument("--served-model-name", help="name in the API (default: the checkpoint directory's)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that the checkpoint holds")
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    given = parser.parse_args(arguments)
    if given.remove is not None:
        for name, value in vars(given).items():
            if name not in ("remove", "model_repository") and value != parser.get_default(name):
                parser.error(f"--remove builds nothing: --{name.replace('_', '-')} has no meaning with it")
        return Removal(given.model_repository, given.remove)
    if given.name == "":
        parser.error("--name is empty")
    return BuildOptions(
        model=given.model,
        model_repository=given.model_repository,
        name=given.name or "",
        engine="transformers" if given.engine == "auto" else given.engine,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_batch_size=given.max_batch_size,
        max_tokens_in_kv_cache=given.max_tokens_in_kv_cache,
        served_model_name=given.served_model_name,
        trust_remote_code=given.trust_remote_code,
        force=given.force,
    )


def main(arguments: list[str] | None = None) -> int:
    """Build or remove; returns the exit status."""
    wanted = parse(arguments)
    try:
        if isinstance(wanted, Removal):
            remove(wanted.model_repository, wanted.name, _report)
        else:
            build(wanted, _report)
    except EngineLoadError as error:
        print(f"build/engine.py: {error}", file=sys.stderr)
        return 1
    return 0


def _report(line: str) -> None:
    print(f"build: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
