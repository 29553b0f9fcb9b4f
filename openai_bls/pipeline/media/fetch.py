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
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httptools

from openai_bls.pipeline.media.addresses import Address, is_internal, is_public
from openai_bls.pipeline.media.answer import DOWNLOAD, OK, READ_BYTES, ImageAnswer
from openai_bls.pipeline.media.budget import MediaLease
from openai_bls.pipeline.media.errors import ImageError
from openai_bls.pipeline.media.hosts import DEFAULT_PORTS, Hosts
from openai_bls.pipeline.media.shares import Limits, Shares
from openai_bls.pipeline.slices import Turns

T = TypeVar("T")

MAX_REDIRECTS = 3
MAX_URL = 8192
"""Characters of a URL."""
MAX_FETCHES = 256
"""Images that are fetched at a time, of all requests together."""
MAX_FETCHES_PER_KEY = 64
"""Images that are fetched for one API key at a time; others of it wait."""
MAX_FETCHES_PER_HOST = 8
"""Images that are fetched from one host for one API key at a time."""
MAX_FETCHES_OF_HOST = 16
"""Images that are fetched from one host at a time, for all API keys together."""
MAX_WAITING_PER_KEY = 1024
"""Images of one API key that wait for their turn."""
MAX_WAITING_PER_HOST = 256
"""Images of one API key and one host that wait."""
MAX_LOOKUPS = 32
"""Names that are resolved at a time: as many threads."""
MAX_LOOKUPS_PER_KEY = 8
"""Names that are resolved for one API key at a time. One whose fetch has been given up counts until its thread has
ended: it cannot be cancelled."""

_MAX_ADDRESSES = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?\.?|[0-9a-f:.]+", re.ASCII)

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
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, "resolve")
        fetches = Limits(
            total=MAX_FETCHES,
            per_key=MAX_FETCHES_PER_KEY,
            per_host=MAX_FETCHES_OF_HOST,
            per_key_and_host=MAX_FETCHES_PER_HOST,
            waiting_per_key=MAX_WAITING_PER_KEY,
            waiting_per_key_and_host=MAX_WAITING_PER_HOST,
        )
        self._fetches = Shares(fetches, "images")
        most = MAX_LOOKUPS_PER_KEY
        self._lookups = Shares(
            fetches._replace(total=MAX_LOOKUPS, per_key=most, per_host=2 * most, per_key_and_host=most), "images"
        )
        self._turns = Turns()

    @property
    def running(self) -> int:
        """Images that are being fetched."""
        return self._fetches.running

    @property
    def waiting(self) -> int:
        """Images that wait for their turn."""
        return self._fetches.waiting

    async def fetch(self, url: str, lease: MediaLease, key: str = "") -> bytes:
        """The bytes at a URL, which are taken from `lease`. Cancelling this closes the connection.

        Args:
            url: place of the image.
            lease: part of the budget for images that its bytes are taken from.
            key: name of the API key whose share of the fetches it takes.

        Raises:
            ImageError: the URL may not be asked, or does not answer with a file as it should.
            OverloadedError: too many images of the key wait to be fetched, or there is no room for it.
        """
        first = self._checked(url)
        try:
            return await _within(self._timeout_s, self._followed(first, url, lease, key))
        except ssl.SSLError:
            raise ImageError(DOWNLOAD, "cannot be fetched: its host has no TLS, or a certificate of no use") from None
        except (OSError, EOFError, httptools.HttpParserError):
            raise ImageError(DOWNLOAD, "cannot be fetched: its host does not answer as it should") from None

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

    async def _followed(self, at: Place, url: str, lease: MediaLease, key: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            async with self._fetches.place(key, at.host):
                answer = await self._asked(at, lease, key)
            if answer.status == OK:
                return await answer.body()
            if answer.status not in _REDIRECTS or not answer.location:
                raise ImageError(DOWNLOAD, f"cannot be fetched: its host answers {answer.status}")
            url = urljoin(url, answer.location)
            at = self._checked(url)
        raise ImageError(DOWNLOAD, f"cannot be fetched: there are more than {MAX_REDIRECTS} redirects")

    async def _asked(self, at: Place, lease: MediaLease, key: str) -> ImageAnswer:
        """The answer of one host: whole if it is a 200, else its head."""
        loop = asyncio.get_running_loop()
        found = await self._found(at, key)
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
            answer = ImageAnswer(self._max_bytes, lease)
            while not answer.ended and answer.status in (0, OK):
                await answer.feed(await reader.read(READ_BYTES), self._turns)
            return answer
        finally:
            # Not closed in good order, which would wait for the host.
            writer.transport.abort()

    async def _found(self, at: Place, key: str) -> Sequence[str]:
        """Addresses of the host, found in a thread, which keeps its place until it has ended."""
        loop = asyncio.get_running_loop()

        def leave(_: object) -> None:
            with contextlib.suppress(RuntimeError):
                # The loop may have been closed meanwhile.
                loop.call_soon_threadsafe(self._lookups.leave, key, at.host)

        await self._lookups.enter(key, at.host)
        lookup = self._threads.submit(self._resolve, at.host, at.port)
        lookup.add_done_callback(leave)
        return await asyncio.wrap_future(lookup)

    async def _connected(
        self, at: Place, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the addresses, which have been checked; nothing is resolved again."""
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": at.host} if at.scheme == "https" else {}
        failure: OSError | None = None
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await asyncio.open_connection(str(address), at.port, limit=READ_BYTES, **tls)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure


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
    raise ImageError(DOWNLOAD, f"cannot be fetched in {seconds:g} s (image_timeout_s)")
