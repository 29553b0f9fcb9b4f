"""Check of a built engine outside Triton: the command `openai-bls verify` for the model repository of this source tree.

python build/verify.py
python build/verify.py --prompt "What is a transformer?" --max-tokens 128
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("openai_bls") is None:
    sys.stderr.write(
        f"build/verify.py: error: openai_bls is not installed in {sys.executable}: run `pip install -e .` in the source"
        " tree\n"
    )
    sys.exit(2)

from openai_bls.commands.main import run

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.exit(run("verify", sys.argv[1:], prog="build/verify.py", model_repository=ROOT / "model_repository"))
