"""Command line: `python -m openai_bls` is the command `openai-bls`."""

from __future__ import annotations

import sys

from openai_bls.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
