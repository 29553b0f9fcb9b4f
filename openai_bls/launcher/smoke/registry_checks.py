"""Smoke checks of the endpoint registry: one request per endpoint on /v1, and one on Triton's generate."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from openai_bls.api.endpoint import Smoke
from openai_bls.api.registry import ENDPOINTS
from openai_bls.launcher.smoke.outcome import Check, CheckFailedError
from openai_bls.launcher.smoke.session import Session

_GENERATE = "/v2/models/openai_bls/generate"


def _checked(smoke: Smoke, answer: Any) -> str:
    try:
        return smoke.check(answer)
    except AssertionError as error:
        raise CheckFailedError(str(error)) from None


def _on_v1(path: str, smoke: Smoke) -> Callable[[Session], str]:
    def check(session: Session) -> str:
        return _checked(smoke, session.v1.post(path.removeprefix("/v1"), {"model": session.model, **smoke.body}))

    return check


def _on_triton(name: str, smoke: Smoke) -> Callable[[Session], str]:
    def check(session: Session) -> str:
        fields = {"endpoint": name, "request": json.dumps({"model": session.model, **smoke.body})}
        return _checked(smoke, json.loads(session.triton.post(_GENERATE, fields)["response"]))

    return check


CHECKS = (
    *(Check(f"POST {e.paths[0]}", _on_v1(e.paths[0], e.smoke), e.smoke.optional) for e in ENDPOINTS if e.smoke),
    *(
        Check(f"generate, {e.name}", _on_triton(e.name, e.smoke), e.smoke.optional)
        for e in ENDPOINTS
        if e.smoke and e.triton
    ),
)
