"""Reason why a model failed to load, in Triton's words and in ours."""

from __future__ import annotations

import re

_STATUS_CODE = re.compile(
    r"^(?:(?:Internal|Invalid argument|Unavailable|Not found|Unknown|TritonModelException)(?:: | - ))+"
)


def load_failure(reason: str) -> str:
    """First line of Triton's reason, less its status code."""
    return _STATUS_CODE.sub("", reason.strip().partition("\n")[0]).strip()
