"""Programs that tests run and pip does not bring."""

from __future__ import annotations

import os
import shutil

import pytest


def tool(*names: str) -> str:
    """Path of the first of these programs that is there; without any the test is left out, in CI it fails."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        sentence = f"{' or '.join(names)} is not on PATH; on Debian: sudo .ci/install-tools"
        if os.environ.get("OPENAI_BLS_TESTS_NEED_TOOLS"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path
