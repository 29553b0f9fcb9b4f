"""Smoke test: a server started for the model repository, or one that runs, and a check of each of its endpoints.

    python build/smoke.py
    python build/smoke.py --url http://host:9000/v1 --triton-url http://host:8000 --grpc-url host:8001

It needs the openai package; everything else is in `openai_bls/launcher/smoke/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    try:
        from openai_bls.launcher.smoke.command import main
    except ModuleNotFoundError as error:
        print(f"error: the smoke test needs the package {error.name}: pip install 'openai_bls[smoke]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(ROOT / "model_repository"))
