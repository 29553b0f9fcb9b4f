"""Smoke test: the command `openai-bls smoke` for the model repository of this source tree, or a server that runs.

python build/smoke.py
python build/smoke.py --url http://host:9000/v1 --triton-url http://host:8000 --grpc-url host:8001
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("openai_bls") is None:
    sys.stderr.write(
        f"build/smoke.py: error: openai_bls is not installed in {sys.executable}: run `pip install -e .` in the source"
        " tree\n"
    )
    sys.exit(2)

from openai_bls.commands.main import run

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.exit(run("smoke", sys.argv[1:], prog="build/smoke.py", model_repository=ROOT / "model_repository"))
