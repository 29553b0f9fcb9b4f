"""uvicorn server of /v1 on a running event loop."""

from __future__ import annotations

import asyncio
import functools
import resource

import msgspec
import uvicorn
from starlette.middleware.cors import CORSMiddleware

from openai_bls.api.http.app import create_app
from openai_bls.api.http.listener import SharedListener
from openai_bls.api.http.stream_connection import StreamConnection
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.service import Service

# Seconds that connections get to finish once the model is being unloaded.
_GRACE_S = 5
# Seconds that a connection may stay silent between two requests, and before its first.
_KEEP_ALIVE_S = 75
# Open files that are not connections of /v1: libraries, sockets to the other models, Triton's own.
_OTHER_FILES = 128


class HttpServer:
    """/v1 on one listening socket."""

    def __init__(self, service: Service, listener: SharedListener, write_batcher: WriteBatcher) -> None:
        self._listener = listener
        app = create_app(service, write_batcher)
        if service.settings.origins:
            app.add_middleware(
                CORSMiddleware, allow_origins=service.settings.origins, allow_methods=["*"], allow_headers=["*"]
            )
        config = uvicorn.Config(
            app,
            # A class is what it usually is, and called is all it is.
            http=functools.partial(StreamConnection, settings=_within_open_files(service.settings)),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener.socket]))

    async def stop(self) -> None:
        """Accept no more, let running responses end, close."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()


def _within_open_files(settings: OpenAiBlsSettings) -> OpenAiBlsSettings:
    """`settings` with as many connections as the process may have open files, at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings
    return msgspec.structs.replace(settings, max_connections=max(1, min(settings.max_connections, soft - _OTHER_FILES)))
