"""/v1/embeddings."""

from __future__ import annotations

from starlette.routing import Route

from openai_bls.api.embeddings.serving import embed
from openai_bls.api.http import one_shot_handler
from openai_bls.api.http.handlers import Api


def routes(api: Api) -> list[Route]:
    """The endpoint's route."""
    return [Route("/v1/embeddings", one_shot_handler.handler(api, embed), methods=["POST"])]
