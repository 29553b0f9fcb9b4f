"""Smoke checks of the endpoint registry: one request per endpoint on /v1, and one on Triton's generate."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import openai

from openai_bls.api.endpoint import FORM, Endpoint, Smoke
from openai_bls.api.registry import ENDPOINTS
from openai_bls.launcher.smoke.check import Check
from openai_bls.launcher.smoke.session import CheckFailedError, Session, post

_GENERATE = "/v2/models/openai_bls/generate"


def _on_v1(session: Session, endpoint: Endpoint, body: dict[str, Any]) -> Any:
    if endpoint.operation.answer is bytes:
        return session.root.post(endpoint.paths[0], body=body, cast_to=openai.HttpxBinaryResponseContent).content
    if endpoint.operation.body_type == FORM:
        return _post_form(session, endpoint.paths[0], body)
    return post(session.root, endpoint.paths[0], body)


def _post_form(session: Session, path: str, body: dict[str, Any]) -> Any:
    """The JSON that answers a form, whose file is base64 in `body`."""
    fields = dict(body)
    files = {"file": ("file", base64.b64decode(fields.pop("file")))}
    return session.root.post(
        path, body=fields, files=files, options={"headers": {"Content-Type": FORM}}, cast_to=object
    )


def _on_triton(session: Session, endpoint: Endpoint, body: dict[str, Any]) -> Any:
    fields = session.with_key({"endpoint": endpoint.name, "request": json.dumps(body)})
    return json.loads(post(session.triton, _GENERATE, fields)["response"])


def _check(
    name: str, endpoint: Endpoint, smoke: Smoke, ask: Callable[[Session, Endpoint, dict[str, Any]], Any]
) -> Check:
    def call(session: Session) -> str:
        model = session.task_model(smoke.tasks) if smoke.tasks else session.engine(*smoke.engines)
        answer = ask(session, endpoint, {"model": model, **smoke.body})
        try:
            return smoke.check(answer)
        except AssertionError as error:
            raise CheckFailedError(str(error)) from None

    return Check(name, call, smoke.optional)


CHECKS = (
    *(_check(f"POST {e.paths[0]}", e, e.smoke, _on_v1) for e in ENDPOINTS if e.smoke),
    *(_check(f"generate, {e.name}", e, e.smoke, _on_triton) for e in ENDPOINTS if e.smoke and e.triton),
)
