"""Start a server for the model repository, or take one that runs, and check every endpoint of it.

    python build/smoke.py
    python build/smoke.py --url http://host:9000/v1 --triton-url http://host:8000 --grpc-url host:8001

Everything else is in `openai_bls/smoke/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from openai_bls.launcher.smoke.command import main

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.exit(main(ROOT / "model_repository"))
