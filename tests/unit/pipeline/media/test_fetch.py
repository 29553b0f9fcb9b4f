"""Fetching of images: from whom, with what limits, and how it ends."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.media import fetch as fetching
from openai_bls.pipeline.media.budget import MediaBudget
from openai_bls.pipeline.media.errors import ImageError
from openai_bls.pipeline.media.fetch import Fetcher, place
from openai_bls.pipeline.media.hosts import Hosts
from tests.certificates import Authority
from tests.fakes.image_host import ImageHost, drips, ok, redirect
from tests.unit.core_support import WAIT_S

MAX_BYTES = 100_000


class Net:
    """A fetcher that may ask one host under the name `images.test`, and what it resolves."""

    def __init__(
        self,
        port: int,
        *,
        public: tuple[str, ...] = (),
        timeout_s: float = WAIT_S,
        max_bytes: int = MAX_BYTES,
        **options: Any,
    ) -> None:
        self.port = port
        self.names: dict[str, list[str]] = {"images.test": ["127.0.0.1"]}
        self.asked: list[str] = []
        self.budget = MediaBudget(10 * MAX_BYTES)
        hosts = Hosts(public, (f"images.test:{port}",))
        self.fetcher = Fetcher(hosts, max_bytes, timeout_s, self._resolve, **options)

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.names[host]

    async def get(self, path: str, scheme: str = "http") -> bytes:
        url = path if "://" in path else f"{scheme}://images.test:{self.port}{path}"
        with self.budget.lease() as lease:
            return await self.fetcher.fetch(url, lease)

    async def refused(self, path: str) -> ImageError:
        with pytest.raises(ImageError) as caught:
            await self.get(path)
        assert (self.fetcher.running, self.budget.held) == (0, 0)
        return caught.value


async def test_whole_bodies() -> None:
    async with ImageHost.running() as host:
        net = Net(host.port)
        host.answers = {
            "/a?b=c%20d": ok(b"one"),
            "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n",
            "/open": b"HTTP/1.0 200 OK\r\n\r\nthree",
            "/1": redirect("/2"),
            "/2": redirect(f"http://images.test:{host.port}/open", 308),
        }
        assert [await net.get(path) for path in ("/a?b=c d".replace(" ", "%20"), "/chunked", "/open", "/1")] == [
            *(b"one", b"two", b"three", b"three")
        ]
        # The very address, under the host's own name, and without anything of the client's.
        assert f"\r\nHost: images.test:{host.port}\r\n" in host.requests[0]
        assert "Cookie" not in host.requests[0]
        assert net.budget.held == 0


async def test_refused_answers() -> None:
    async with ImageHost.running() as host:
        net = Net(host.port)
        host.answers = {
            "/large": ok(bytes(MAX_BYTES + 1)),
            "/endless": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_BYTES + 1),
            "/gzip": ok(b"x", "Content-Encoding: gzip"),
            "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
            "/noise": b"SSH-2.0-OpenSSH\r\n\r\n",
            "/head": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000,
            "/loop": redirect("/loop"),
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
            "/file": redirect("file:///etc/passwd"),
            "/nowhere": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
            "/upgrade": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        }
        codes = {path: (await net.refused(path)).code for path in host.answers}
        refused = dict.fromkeys(host.answers, "failed_to_download_image")
        refused |= dict.fromkeys(("/large", "/endless"), "image_file_too_large")
        assert codes == refused | dict.fromkeys(("/metadata", "/file"), "invalid_image_url")
        assert "answers 404" in (await net.refused("/missing")).fault


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://images.test/x", "file:///etc/passwd", "/etc/passwd", "", "http://", "http://a:99999/", "http://[::1"),
        *("http://user:pw@images.test/", "http://ima ges.test/", "http://images.test\\@evil.test/", "//images.test/x"),
        *("http://evil.test/", "http://images.test/", "https://2130706433/", "http://" + "a" * 9000),
        "http://images.test:80\r\nX: y/",
    ],
)
async def test_urls_that_are_not_asked(url: str) -> None:
    net = Net(1)
    with net.budget.lease() as lease, pytest.raises(ImageError) as caught:
        await net.fetcher.fetch(url, lease)
    assert caught.value.code == "invalid_image_url"
    assert net.asked == []


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], []])
async def test_a_public_host_with_a_private_address_is_not_asked(addresses: list[str]) -> None:
    async with ImageHost.running() as host:
        net = Net(host.port, public=(f"evil.test:{host.port}",))
        net.names["evil.test"] = addresses
        error = await net.refused(f"http://evil.test:{host.port}/")
        assert error.code == "invalid_image_url"
        assert host.requests == []
        # Not by way of a host that may be private either.
        host.answers["/r"] = redirect(f"http://evil.test:{host.port}/")
        assert "without a public address" in (await net.refused("/r")).fault


async def test_names_are_resolved_once_for_each_hop() -> None:
    async with ImageHost.running() as host:
        net = Net(host.port)
        host.answers["/"] = ok(b"x")
        await net.get("/")
        assert net.asked == ["images.test"]


async def test_tls_is_checked_against_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue())
    async with ImageHost.running(server) as host:
        host.answers["/"] = ok(b"x")
        net = Net(host.port, public=(), tls=authority.client)
        # The certificate is for localhost.
        assert (await net.refused(f"https://images.test:{host.port}/")).code == "failed_to_download_image"
        other = Fetcher(Hosts((), (f"localhost:{host.port}",)), 9, WAIT_S, lambda *_: ["127.0.0.1"], authority.client)
        with net.budget.lease() as lease:
            assert await other.fetch(f"https://localhost:{host.port}/", lease) == b"x"
        untrusted = Fetcher(Hosts((), (f"localhost:{host.port}",)), 9, WAIT_S, lambda *_: ["127.0.0.1"])
        with net.budget.lease() as lease, pytest.raises(ImageError, match="TLS"):
            await untrusted.fetch(f"https://localhost:{host.port}/", lease)


async def test_a_slow_host_is_given_up() -> None:
    async with ImageHost.running() as host:
        host.answers["/"] = drips
        net = Net(host.port, timeout_s=0.3, max_bytes=10**7)
        assert "in 0.3 s" in (await net.refused("/")).fault


async def test_a_slow_host_holds_up_no_other() -> None:
    async with ImageHost.running() as slow, ImageHost.running() as quick:
        slow.answers["/"], quick.answers["/"] = drips, ok(b"x")
        hosts = Hosts((), (f"slow.test:{slow.port}", f"quick.test:{quick.port}"))
        fetcher = Fetcher(hosts, 10**7, WAIT_S, lambda *_: ["127.0.0.1"])
        with MediaBudget(10**9).lease() as lease:
            url = f"http://slow.test:{slow.port}/"
            count = 2 * fetching.MAX_FETCHES_PER_HOST
            waiting = [asyncio.ensure_future(fetcher.fetch(url, lease)) for _ in range(count)]
            while slow.open < fetching.MAX_FETCHES_PER_HOST:
                await asyncio.sleep(0)
            assert await fetcher.fetch(f"http://quick.test:{quick.port}/", lease) == b"x"
            assert not any(task.done() for task in waiting)
            assert slow.open == fetching.MAX_FETCHES_PER_HOST
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert fetcher.running == 0
        assert fetcher.waiting == 0


async def test_cancelling_closes_the_connection() -> None:
    async with ImageHost.running() as host:
        host.answers["/"] = drips
        net = Net(host.port)
        task = asyncio.ensure_future(net.get("/"))
        while not host.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(WAIT_S):
            while host.open:
                await asyncio.sleep(0.01)
        assert (net.fetcher.running, net.budget.held) == (0, 0)


async def test_no_more_than_there_is_room_for() -> None:
    async with ImageHost.running() as host:
        host.answers["/"] = ok(bytes(MAX_BYTES))
        net = Net(host.port)
        with net.budget.lease() as full:
            full.take(10 * MAX_BYTES)
            with pytest.raises(OverloadedError, match="max_image_memory_bytes"):
                await net.get("/")


async def test_only_who_is_over_its_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches of a host that does not answer leave room for another host and another key."""
    for name, most in (("PER_KEY", 8), ("PER_HOST", 2), ("OF_HOST", 3)):
        monkeypatch.setattr(fetching, f"MAX_FETCHES_{name}", most)
    monkeypatch.setattr(fetching, "MAX_WAITING_PER_HOST", 20)
    async with ImageHost.running() as slow, ImageHost.running() as quick:
        slow.answers["/"], slow.answers["/quick"], quick.answers["/"] = drips, ok(b"y"), ok(b"x")
        hosts = Hosts((), (f"slow.test:{slow.port}", f"quick.test:{quick.port}"))
        fetcher = Fetcher(hosts, 10**7, WAIT_S, lambda *_: ["127.0.0.1"])
        with MediaBudget(10**9).lease() as lease:
            at_slow, at_quick = f"http://slow.test:{slow.port}/", f"http://quick.test:{quick.port}/"
            tasks = [asyncio.ensure_future(fetcher.fetch(at_slow, lease, "alice")) for _ in range(256)]
            while slow.open < 2:
                await asyncio.sleep(0)
            assert (fetcher.running, fetcher.waiting) == (2, 20)
            refused = [task.exception() for task in tasks if task.done()]
            assert [type(error) for error in refused] == [OverloadedError] * 234
            assert {error.headers["Retry-After"] for error in refused if isinstance(error, OverloadedError)} == {"1"}
            assert await fetcher.fetch(at_quick, lease, "alice") == b"x"
            assert await fetcher.fetch(at_slow + "quick", lease, "bob") == b"y"
            assert await fetcher.fetch(at_quick, lease, "bob") == b"x"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (fetcher.running, fetcher.waiting) == (0, 0)


async def test_names_that_are_not_found_hold_up_no_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after their fetches have been given up: their threads go on."""
    monkeypatch.setattr(fetching, "MAX_LOOKUPS_PER_KEY", 2)
    monkeypatch.setattr(fetching, "MAX_LOOKUPS", 3)
    found, asked = threading.Event(), []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host != "quick.test":
            found.wait(WAIT_S)
        return ["127.0.0.1"]

    async with ImageHost.running() as quick:
        quick.answers["/"] = ok(b"x")
        fetcher = Fetcher(Hosts((), (f"*:{quick.port}",)), 10**7, WAIT_S, resolve)
        with MediaBudget(10**9).lease() as lease:
            tasks = [
                asyncio.ensure_future(fetcher.fetch(f"http://slow{number}.test:{quick.port}/", lease, "alice"))
                for number in range(6)
            ]
            while len(asked) < 2:
                await asyncio.sleep(0)
            for task in tasks[:2]:
                task.cancel()
            await asyncio.gather(*tasks[:2], return_exceptions=True)
            assert await fetcher.fetch(f"http://quick.test:{quick.port}/", lease, "bob") == b"x"
            assert asked == ["slow0.test", "slow1.test", "quick.test"]
            found.set()
            assert await tasks[2] == b"x"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_places() -> None:
    found = place("HTTPS://Images.Example:8443/ä b/%41?q=ü#part".replace(" ", "%20"))
    assert (found.scheme, found.host, found.port) == ("https", "images.example", 8443)
    assert found.target == "/%C3%A4%20b/%41?q=%C3%BC"
    assert found.authority == "images.example:8443"
    assert place("http://[2606:4700::1]/").authority == "[2606:4700::1]"
