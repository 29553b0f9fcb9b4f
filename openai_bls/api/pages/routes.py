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


def page_routes(triton_port: int | None, max_audio_seconds: int) -> list[Route]:
    """The routes of the pages, which need no key.

    Args:
        triton_port: port of Triton's HTTP front end, which the page names in commands; None where there is none.
        max_audio_seconds: longest audio that the server takes, where a dictation ends. The page says nothing else of
            the server: its requests do.
    """
    told = {b"triton-http-port": triton_port, b"max-audio-seconds": max_audio_seconds}

    @functools.cache
    def index() -> StaticFile:
        found = static_files()[_INDEX]
        body = found.body
        for name, value in told.items():
            empty = b'name="%b" content="' % name
            body = body.replace(empty, empty + (b"" if value is None else b"%d" % value), 1)
        return StaticFile(body, found.media_type)

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
