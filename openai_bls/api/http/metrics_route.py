"""/metrics, for Prometheus: like /health without authentication."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.http.handlers import Api
from openai_bls.pipeline.metrics import CONTENT_TYPE


def routes(api: Api) -> list[Route]:
    """The endpoint's route."""

    async def scrape(request: Request) -> Response:
        return Response(await api.service.metrics.scrape(), media_type=CONTENT_TYPE)

    return [Route("/metrics", scrape, methods=["GET"])]
