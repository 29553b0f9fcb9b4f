"""/tokenize and /detokenize, where vLLM has them and under /v1."""

from __future__ import annotations

from starlette.routing import Route

from openai_bls.api.http import one_shot_handler
from openai_bls.api.http.handlers import Api
from openai_bls.api.tokenize.serving import detokenize, tokenize


def routes(api: Api) -> list[Route]:
    """The routes of both endpoints."""
    return [
        Route(f"{prefix}/{name}", one_shot_handler.handler(api, answer), methods=["POST"])
        for prefix in ("", "/v1")
        for name, answer in (("tokenize", tokenize), ("detokenize", detokenize))
    ]
