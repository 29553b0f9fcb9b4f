"""A proxy for what agents would ask the internet, which lets nothing through and notes each question."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

_REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Outside:
    """The proxy's address, and what it was asked for."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        """First lines of the requests."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which programs send to it all that is not for this machine."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        variables = dict.fromkeys([*names, *map(str.lower, names)], self._url)
        return variables | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")


@contextlib.contextmanager
def started_outside() -> Iterator[Outside]:
    """Run the proxy until the block ends."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            outside.asked.append(self.rfile.readline(1000).decode(errors="replace").strip())
            self.wfile.write(_REFUSAL)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        outside = Outside(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield outside
        server.shutdown()
