"""Fetching of images over http and https: from allowed hosts, at the very addresses that were checked, within limits.

A client of our own: every other resolves a host by itself, after whoever checks it has done so, or follows redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httptools

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.joining import joined
from openai_bls.pipeline.media.addresses import Address, is_internal, is_public
from openai_bls.pipeline.media.budget import ImageLease
from openai_bls.pipeline.media.errors import ImageCode, ImageError
from openai_bls.pipeline.media.hosts import DEFAULT_PORTS, Hosts

T = TypeVar("T")

MAX_REDIRECTS = 3
MAX_URL = 8192
"""Characters of a URL."""
MAX_FETCHES = 256
"""Images that are fetched at a time, of all requests together."""
MAX_FETCHES_PER_HOST = 8
"""Images that are fetched from one host at a time; others wait for theirs."""

_READ_BYTES = 64 * 1024
_HEAD_BYTES = 32 * 1024
_MAX_ADDRESSES = 4
_OK = 200
_REDIRECTS = (301, 302, 303, 307, 308)
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?\.?|[0-9a-f:.]+", re.ASCII)
_DOWNLOAD: ImageCode = "failed_to_download_image"

Resolve = Callable[[str, int], Sequence[str]]
"""Finds the addresses of a host, in a thread; raises OSError."""


def resolved(host: str, port: int) -> list[str]:
    """Addresses of a host, as the system has them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Place(NamedTuple):
    """Place of an image in the web."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """Value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def place(url: str) -> Place:
    """The place that a URL names.

    Raises:
        ImageError: it is no http or https URL.
    """
    if len(url) > MAX_URL:
        raise ImageError("invalid_image_url", f"is a URL of {len(url)} characters; {MAX_URL} are the most")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ImageError("invalid_image_url", "is no URL") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ImageError("invalid_image_url", "must be a data: URI with base64, or an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ImageError("invalid_image_url", "has a user name or password in its URL, which is not supported")
    if not _HOST.fullmatch(host) or any(ord(character) <= 32 or character == "\\" for character in url):
        raise ImageError("invalid_image_url", "is no URL with a host")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?") if parts.query else ""
    )
    return Place(parts.scheme, host.rstrip("."), DEFAULT_PORTS[parts.scheme] if port is None else port, target)


class _Answer:
    """What httptools tells of an answer; only the body of a 200 is kept."""

    def __init__(self, max_bytes: int, lease: ImageLease) -> None:
        self._max_bytes = max_bytes
        self._lease = lease
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._delimited = False
        self._fault: Exception | None = None
        self.status = 0
        """0 until the head has ended."""
        self.location = ""
        self.ended = False

    async def body(self) -> bytes:
        """The body; of one that the end of the connection ends, whatever came."""
        return await joined(self._pieces)

    def feed(self, data: bytes) -> None:
        """Read on.

        Args:
            data: next bytes of the host; none are the end of the connection.

        Raises:
            ImageError: it is more than it may be, or compressed.
            OverloadedError: there is no room for it.
            EOFError: the answer is cut short.
            httptools.HttpParserError: it is no HTTP.
        """
        if not data:
            if self.status == 0 or self._delimited:
                raise EOFError
            self.ended = True
            return
        if self.status == 0:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES + _READ_BYTES:
                raise ImageError(_DOWNLOAD, "cannot be fetched: the head of the answer is too long")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            if self._fault is None:
                raise
            raise self._fault from None

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        key = name.lower()
        if key == b"location":
            self.location = value.decode("latin-1")
        elif key == b"content-length":
            self._delimited = True
            if not value.isdigit() or int(value) > self._max_bytes:
                self._refuse(self._too_large())
        elif key == b"transfer-encoding":
            self._delimited = True
        elif key == b"content-encoding" and value.strip().lower() != b"identity":
            self._refuse(ImageError(_DOWNLOAD, "cannot be fetched: it comes compressed, which was not asked for"))

    def on_headers_complete(self) -> None:
        """The head has ended."""
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self.status != _OK:
            return
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._refuse(self._too_large())
        try:
            self._lease.take(len(piece))
        except OverloadedError as error:
            self._refuse(error)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The body has ended."""
        self.ended = True

    def _too_large(self) -> ImageError:
        return ImageError("image_file_too_large", f"has more than {self._max_bytes} bytes (max_image_bytes)")

    def _refuse(self, error: Exception) -> None:
        self._fault = error
        raise error


class Fetcher:
    """Fetches images. Belongs to the event loop's thread.

    Args:
        hosts: hosts that may be asked.
        max_bytes: most bytes of an image.
        timeout_s: seconds that an image may take, with its redirects and its waiting for others of its host.
        resolve: finds addresses.
        tls: makes the context of https, in a thread.
    """

    def __init__(
        self,
        hosts: Hosts,
        max_bytes: int,
        timeout_s: float,
        resolve: Resolve = resolved,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        # A name server that is slow holds up nothing but these.
        self._threads = ThreadPoolExecutor(32, "resolve")
        self._turns: dict[str, _Turns] = {}
        self.running = 0
        """Images that are being fetched."""

    async def fetch(self, url: str, lease: ImageLease) -> bytes:
        """The bytes at a URL, which are taken from `lease`. Cancelling this closes the connection.

        Raises:
            ImageError: the URL may not be asked, or does not answer with a file as it should.
            OverloadedError: too many images are being fetched, or there is no room for it.
        """
        first = self._checked(url)
        if self.running >= MAX_FETCHES:
            raise OverloadedError(f"The server is fetching {MAX_FETCHES} images, the most at a time; try again later.")
        self.running += 1
        try:
            return await _within(self._timeout_s, self._followed(first, url, lease))
        except ssl.SSLError:
            raise ImageError(_DOWNLOAD, "cannot be fetched: its host has no TLS, or a certificate of no use") from None
        except (OSError, EOFError, httptools.HttpParserError):
            raise ImageError(_DOWNLOAD, "cannot be fetched: its host does not answer as it should") from None
        finally:
            self.running -= 1

    def close(self) -> None:
        """Resolve no more names."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _checked(self, url: str) -> Place:
        found = place(url)
        if not self._hosts:
            raise ImageError(
                "invalid_image_url",
                "is a URL, which is not fetched here (image_url_hosts): send the image as a data: URI",
            )
        if not self._hosts.allows(found.host, found.port, found.scheme):
            raise ImageError(
                "invalid_image_url", f"is at {found.authority[:100]}, a host that is not allowed here (image_url_hosts)"
            )
        return found

    async def _followed(self, at: Place, url: str, lease: ImageLease) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            async with self._turn(at.host):
                answer = await self._asked(at, lease)
            if answer.status == _OK:
                return await answer.body()
            if answer.status not in _REDIRECTS or not answer.location:
                raise ImageError(_DOWNLOAD, f"cannot be fetched: its host answers {answer.status}")
            url = urljoin(url, answer.location)
            at = self._checked(url)
        raise ImageError(_DOWNLOAD, f"cannot be fetched: there are more than {MAX_REDIRECTS} redirects")

    @contextlib.asynccontextmanager
    async def _turn(self, host: str) -> AsyncIterator[None]:
        """A turn at a host, so that one that is slow does not take the place of others."""
        turns = self._turns.setdefault(host, _Turns(asyncio.Semaphore(MAX_FETCHES_PER_HOST)))
        turns.wanted += 1
        try:
            async with turns.free:
                yield
        finally:
            turns.wanted -= 1
            if not turns.wanted:
                del self._turns[host]

    async def _asked(self, at: Place, lease: ImageLease) -> _Answer:
        """The answer of one host: whole if it is a 200, else its head."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._resolve, at.host, at.port)
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
        may: Callable[[Address], bool] = is_public
        if self._hosts.may_be_private(at.host, at.port, at.scheme):
            may = is_internal
        if not addresses or not all(map(may, addresses)):
            # One that is not has no business among them.
            raise ImageError("invalid_image_url", "is at a host without a public address, which is not asked")
        if at.scheme == "https" and self._tls is None:
            self._tls = await loop.run_in_executor(self._threads, self._make_tls)
        reader, writer = await self._connected(at, addresses)
        try:
            writer.write(_request(at))
            answer = _Answer(self._max_bytes, lease)
            while not answer.ended and answer.status in (0, _OK):
                answer.feed(await reader.read(_READ_BYTES))
            return answer
        finally:
            # Not closed in good order, which would wait for the host.
            writer.transport.abort()

    async def _connected(
        self, at: Place, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the addresses, which have been checked; nothing is resolved again."""
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": at.host} if at.scheme == "https" else {}
        failure: OSError | None = None
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await asyncio.open_connection(str(address), at.port, limit=_READ_BYTES, **tls)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure


class _Turns:
    def __init__(self, free: asyncio.Semaphore) -> None:
        self.free = free
        self.wanted = 0


def _request(at: Place) -> bytes:
    return (
        f"GET {at.target} HTTP/1.1\r\nHost: {at.authority}\r\nUser-Agent: openai_bls\r\n"
        "Accept: image/png, image/jpeg, image/webp, image/gif\r\nAccept-Encoding: identity\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")


async def _within(seconds: float, work: Awaitable[T]) -> T:
    """Result of `work`, which is cancelled when the time is over.

    Raises:
        ImageError: it has not ended by then.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    raise ImageError(_DOWNLOAD, f"cannot be fetched in {seconds:g} s (image_timeout_s)")
