"""Routes of the web pages: the playground at `/`, and the files that it is made of."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.pages.static_files import static_files


def page_routes() -> list[Route]:
    """The routes of the pages, which need no key: they say nothing of the server, and their requests to it do."""

    async def file(request: Request) -> Response:
        files = await asyncio.to_thread(static_files)
        # Names are looked up, never joined to a path.
        found = files.get(request.path_params.get("name", "playground/index.html"))
        if found is None:
            raise HTTPException(404)
        return found.response(request)

    return [Route("/", file, methods=["GET"]), Route("/static/{name:path}", file, methods=["GET"])]
