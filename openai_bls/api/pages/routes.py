"""Routes of the web pages: the playground at `/`, and the files that it is made of."""

from __future__ import annotations

import asyncio
import functools

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.pages.static_files import StaticFile, static_files

_INDEX = "playground/index.html"
_PORT = b'name="triton-http-port" content="'


def page_routes(triton_port: int | None) -> list[Route]:
    """The routes of the pages, which need no key.

    Args:
        triton_port: port of Triton's HTTP front end, which the page names in commands; None where there is none. The
            page says nothing else of the server: its requests do.
    """
    port = b"" if triton_port is None else b"%d" % triton_port

    @functools.cache
    def index() -> StaticFile:
        found = static_files()[_INDEX]
        return StaticFile(found.body.replace(_PORT, _PORT + port, 1), found.media_type)

    async def file(request: Request) -> Response:
        files = await asyncio.to_thread(static_files)
        # Names are looked up, never joined to a path.
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found.response(request)

    async def playground(request: Request) -> Response:
        return (await asyncio.to_thread(index)).response(request)

    return [Route("/", playground, methods=["GET"]), Route("/static/{name:path}", file, methods=["GET"])]
