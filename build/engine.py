"""Build of an engine: the command `openai-bls build` for the model repository of this source tree.

python build/engine.py --model Qwen/Qwen2.5-7B-Instruct                  a hub id or a directory
python build/engine.py --help                                            every option
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("openai_bls") is None:
    sys.stderr.write(
        f"build/engine.py: error: openai_bls is not installed in {sys.executable}: run `pip install -e .` in the source"
        " tree\n"
    )
    sys.exit(2)

from openai_bls.commands.main import run

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.exit(run("build", sys.argv[1:], prog="build/engine.py", model_repository=ROOT / "model_repository"))
