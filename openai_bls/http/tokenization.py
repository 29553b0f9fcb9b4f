"""/tokenize and /detokenize, where vLLM has them and under /v1."""

from __future__ import annotations

from starlette.routing import Route

from openai_bls.http import oneshot
from openai_bls.http.handling import Api
from openai_bls.tokenization import detokenize, tokenize


def routes(api: Api) -> list[Route]:
    """The routes of both endpoints."""
    return [
        Route(f"{prefix}/{name}", oneshot.handler(api, answer), methods=["POST"])
        for prefix in ("", "/v1")
        for name, answer in (("tokenize", tokenize), ("detokenize", detokenize))
    ]
