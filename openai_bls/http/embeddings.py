"""/v1/embeddings."""

from __future__ import annotations

from starlette.routing import Route

from openai_bls.embeddings import embed
from openai_bls.http import oneshot
from openai_bls.http.handling import Api


def routes(api: Api) -> list[Route]:
    """The endpoint's route."""
    return [Route("/v1/embeddings", oneshot.handler(api, embed), methods=["POST"])]
