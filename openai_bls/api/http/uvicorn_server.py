"""uvicorn server of /v1 on a running event loop."""

from __future__ import annotations

import asyncio
import functools
import resource
import socket
from collections.abc import Mapping

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_bls.api.http.connection.bounded_connection import MAX_REFUSED_CONNECTIONS
from openai_bls.api.http.connection.stream_connection import StreamConnection
from openai_bls.api.http.listening.acceptor import Acceptor
from openai_bls.api.http.listening.listener import SharedListener
from openai_bls.api.http.listening.tls_acceptor import TlsAcceptor
from openai_bls.api.http.listening.tls_files import TlsFiles
from openai_bls.api.http.observed import ObservedRequests
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.slices import Turns

# Seconds that connections get to finish once the model is being unloaded.
_GRACE_S = 5
KEEP_ALIVE_S = 75
"""Seconds that a connection may stay silent between two requests, and before its first."""
# Open files that are not connections of /v1: libraries, sockets to the other models, Triton's own.
_OTHER_FILES = 128


class HttpServer:
    """/v1 on one listening socket.

    Args:
        app: application of `service`, as `create_app` makes it.
        service: service that answers the requests.
        listener: listener on the socket.
        tls: files for HTTPS; None serves HTTP.
    """

    def __init__(self, app: Starlette, service: Service, listener: SharedListener, tls: TlsFiles | None = None) -> None:
        self._listener = listener
        settings = _within_open_files(service.settings)
        self._background = app.state.background
        answering: ASGIApp = EndpointsFirst(app, app.state.endpoints)
        if service.settings.origins:
            answering = CORSMiddleware(
                answering,
                allow_origins=service.settings.origins,
                allow_methods=["*"],
                allow_headers=["*"],
                # Else a page reads neither the id of its request nor when to try again.
                expose_headers=["*"],
            )
        if service.observer.active:
            # The outermost, so that it sees what the others answer.
            answering = ObservedRequests(answering, service.observer, app.state.unobserved)
        config = uvicorn.Config(
            answering,
            # A class is what it usually is, and called is all it is.
            http=functools.partial(StreamConnection, settings=settings, turns=Turns()),  # type: ignore[arg-type]
            # Not guessed from what the application looks like.
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing here asks for a client's address.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config, settings, tls)
        self._task: asyncio.Task[None] | None = None
        self._beside: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start accepting connections, and the background work."""
        self._beside = [asyncio.get_running_loop().create_task(work()) for work in self._background]
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener.socket]))

    async def stop(self) -> None:
        """Accept no more, let running responses end, close."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()


class EndpointsFirst:
    """ASGI application that calls the endpoints by their paths, and another application for everything else.

    A look into a table in the place of starlette's middleware and its search by patterns: a fifth of the way in.

    Args:
        app: application for all other paths and methods.
        endpoints: applications by method and path.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[tuple[str, str], ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._endpoints.get((scope["method"], scope["path"]), self._app)
        await app(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn with acceptors of ours in the place of the event loop's servers."""

    def __init__(self, config: uvicorn.Config, settings: OpenAiBlsSettings, files: TlsFiles | None) -> None:
        super().__init__(config)
        self._settings = settings
        self._files = files
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on `sockets`."""
        await super().startup([])
        self._acceptors = [self._acceptor(listening) for listening in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, let running responses end, close."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _acceptor(self, listening: socket.socket) -> Acceptor:
        if self._files is None:
            return Acceptor(listening, self._protocol, self._has_room)
        return TlsAcceptor(listening, self._protocol, self._has_room, self._files, self._settings.head_timeout_s)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _has_room(self, preparing: int) -> bool:
        taken = preparing + len(self.server_state.connections)
        return taken < self._settings.max_connections + MAX_REFUSED_CONNECTIONS


def _within_open_files(settings: OpenAiBlsSettings) -> OpenAiBlsSettings:
    """`settings` with as many connections as the process may have open files, at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings
    return msgspec.structs.replace(settings, max_connections=max(1, min(settings.max_connections, soft - _OTHER_FILES)))
