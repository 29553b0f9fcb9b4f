"""TLS of /v1, over real sockets and the event loop that a server has."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import logging
import socket
import ssl
import threading
import warnings
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from openai_bls.api.http import uvicorn_server
from openai_bls.api.http.connection.stream_connection import StreamConnection
from openai_bls.api.http.listening import acceptor
from openai_bls.api.http.listening.tls_files import TlsError, TlsFiles
from openai_bls.core.keys import watched_files
from openai_bls.core.settings import OpenAiBlsSettings
from tests.certificates import Authority
from tests.unit.api.connections import STREAM_TEXT, VERSION, Client, connected, streamed_to_a_slow_reader
from tests.unit.api.http_support import over_socket, served
from tests.unit.core_support import WAIT_S, Bench, until


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def settings(authority: Authority) -> dict[str, Any]:
    return dict(authority.settings())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)


async def version(port: int, context: ssl.SSLContext) -> tuple[int, bytes]:
    """Status of a request on a connection of its own, and the server's certificate."""
    client = await Client.connect(port, context)
    client.send(VERSION)
    status = await client.status()
    certificate: bytes = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    client.writer.close()
    return status, certificate


@pytest.mark.parametrize("key_type", [trustme.KeyType.ECDSA, trustme.KeyType.RSA])
async def test_official_clients(tmp_path: Path, key_type: trustme.KeyType) -> None:
    authority = Authority(tmp_path, key_type=key_type)
    async with over_socket(**authority.settings()) as (bench, port):
        context = authority.client()
        async with httpx.AsyncClient(verify=context) as client:
            answer = await client.get(f"https://127.0.0.1:{port}/health/live")
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        async with openai.DefaultAsyncHttpxClient(verify=context) as sdk_client:
            sdk = openai.AsyncOpenAI(base_url=f"https://localhost:{port}/v1", api_key="none", http_client=sdk_client)
            asked = asyncio.ensure_future(sdk.completions.create(model="tiny", prompt="x", max_tokens=1))
            await until(lambda: bench.engine.requests)
            bench.engine.deliver(0, "hello", "length")
            assert (await asked).choices[0].text == "hello"


async def test_a_stream_is_exact(
    authority: Authority, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a client that does not read for a while: the server stops writing, and holds nobody up."""
    paused: list[StreamConnection] = []
    original = StreamConnection.pause_writing

    def pause_writing(connection: StreamConnection) -> None:
        paused.append(connection)
        original(connection)

    monkeypatch.setattr(StreamConnection, "pause_writing", pause_writing)
    async with connected(2, context=authority.client(), **settings) as (bench, _, slow, quick):
        pieces = [chr(14 + at % 18) * 900 + "é漢" for at in range(1600)]
        await streamed_to_a_slow_reader(bench, slow, quick, pieces)
        assert paused


async def test_many_requests_on_one_connection_and_a_client_that_goes_away(
    authority: Authority, settings: dict[str, Any]
) -> None:
    async with connected(context=authority.client(), **settings) as (bench, _, client):
        client.send(VERSION * 5)
        assert [await client.status() for _ in range(5)] == [200] * 5
        client.post(STREAM_TEXT)
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "abc")
        await client.reader.readuntil(b"abc")
        client.writer.transport.abort()
        await until(lambda: bench.engine.cancelled)


async def test_plain_http_gets_an_answer_that_says_so(settings: dict[str, Any]) -> None:
    async with connected(**settings) as (_, _, client):
        client.send(VERSION)
        assert "https://" in await client.refused(400)


async def test_what_is_neither(authority: Authority, settings: dict[str, Any]) -> None:
    """A record of TLS without sense, one of its first bytes alone, and a client that goes without a word."""
    async with over_socket(**settings) as (_, port):
        client = await Client.connect(port)
        client.send(b"\x16" + b"nonsense" * 10)
        with contextlib.suppress(ConnectionError):
            # An alert, perhaps.
            assert b"HTTP" not in await client.reader.read()
        for start in (b"\x16", b""):
            client = await Client.connect(port)
            client.send(start)
            client.writer.close()
        assert (await version(port, authority.client()))[0] == 200


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_does_not_come(settings: dict[str, Any], start: bytes) -> None:
    async with connected(**settings, head_timeout_s=0.05) as (_, _, client):
        client.send(start)
        await client.cut()


async def test_handshakes_count_as_connections(
    authority: Authority, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "MAX_REFUSED_CONNECTIONS", 1)
    async with over_socket(**settings, max_connections=2) as (_, port):
        silent = [await Client.connect(port) for _ in range(3)]
        await (await Client.connect(port)).cut()
        for client in silent:
            client.writer.close()
        while True:
            with contextlib.suppress(ConnectionError):
                assert (await version(port, authority.client()))[0] == 200
                break


async def test_a_client_reads_why_its_large_body_was_refused(authority: Authority, settings: dict[str, Any]) -> None:
    """It sends all of it before it reads."""

    def post(port: int) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=authority.client())
        connection.request("POST", "/v1/completions", b"x" * 8_000_000, {"Connection": "close"})
        status = connection.getresponse().status
        connection.close()
        return status

    async with over_socket(**settings, max_request_bytes=1000) as (_, port):
        assert await asyncio.to_thread(post, port) == 413


async def test_a_turn_of_the_event_loop_takes_the_records_of_one_read(
    authority: Authority, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small they are: of a hundred thousand that wait the event loop would take all at once."""
    turn, reads, sizes, all_read = 0, list[int](), list[int](), threading.Event()
    received = StreamConnection.data_received

    def data_received(connection: StreamConnection, data: bytes) -> None:
        reads.append(turn)
        sizes.append(len(data))
        received(connection, data)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def send(port: int) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port)) as plain:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(1 << 16))
            client.write(b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(100_000):
                client.write(b"x")
            plain.sendall(outgoing.read())
            assert all_read.wait(WAIT_S)

    monkeypatch.setattr(StreamConnection, "data_received", data_received)
    async with over_socket(**settings) as (_, port):
        counting = asyncio.ensure_future(count())
        sending = asyncio.ensure_future(asyncio.to_thread(send, port))
        await until(lambda: sum(sizes) >= 100_000)
        all_read.set()
        await sending
        counting.cancel()
    assert len(reads) > 5
    assert max(map(reads.count, reads)) == 1


async def test_old_protocols_are_refused(authority: Authority, settings: dict[str, Any]) -> None:
    async with over_socket(**settings) as (_, port):
        for wanted, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = authority.client()
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = wanted
            with contextlib.nullcontext() if works else pytest.raises((ssl.SSLError, ConnectionError)):
                assert (await version(port, context))[0] == 200


@pytest.mark.usefixtures("impatient")
async def test_a_new_certificate_counts_without_a_restart(
    tmp_path: Path, authority: Authority, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Running connections go on with the old one; broken files, which may be half of what comes, change nothing."""
    async with over_socket(**settings) as (_, port):
        running = await Client.connect(port, authority.client())
        _, first = await version(port, authority.client())
        other = Authority(tmp_path, "other")
        renewed = other.issue("renewed")
        key = (tmp_path / "tls.key").read_bytes()
        with caplog.at_level(logging.INFO, logger="openai_bls"):
            (tmp_path / "tls.key").write_bytes(renewed[1].read_bytes())
            assert await version(port, authority.client()) == (200, first)
            (tmp_path / "tls.crt").write_bytes(renewed[0].read_bytes())
            status, second = await version(port, other.client())
        assert (status, second != first) == (200, True)
        assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
        assert "not that of the certificate" in caplog.records[0].getMessage()
        assert key.decode() not in caplog.text
        with pytest.raises(ssl.SSLError):
            await version(port, authority.client())
        running.send(VERSION)
        assert await running.status() == 200
        running.writer.close()


@pytest.mark.usefixtures("impatient")
async def test_client_certificates(tmp_path: Path, authority: Authority, settings: dict[str, Any]) -> None:
    """Asked for where a key is: a probe has neither. A CA that is taken away counts no more."""
    clients, strangers = Authority(tmp_path, "clients"), Authority(tmp_path, "strangers")
    settings["ssl_ca_certs"] = str(clients.file)
    shown = clients.issue("client")
    async with over_socket(**settings) as (_, port):

        async def models(context: ssl.SSLContext) -> httpx.Response:
            async with httpx.AsyncClient(verify=context) as client:
                assert (await client.get(f"https://127.0.0.1:{port}/health/live")).status_code == 200
                return await client.get(f"https://127.0.0.1:{port}/v1/models")

        assert (await models(authority.client(shown))).status_code == 200
        refused = await models(authority.client())
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "client_certificate_required"
        with pytest.raises(httpx.TransportError):
            await models(authority.client(strangers.issue("stranger")))
        clients.file.write_bytes(strangers.file.read_bytes())
        with pytest.raises(httpx.TransportError):
            await models(authority.client(shown))
        assert (await models(authority.client(strangers.issue("stranger")))).status_code == 200


async def test_stopping_cuts_handshakes_off_and_lets_a_stream_end(
    authority: Authority, settings: dict[str, Any]
) -> None:
    bench = Bench(**settings)
    async with served(bench) as port:
        silent = await Client.connect(port)
        client = await Client.connect(port, authority.client())
        client.post(STREAM_TEXT)
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "abc")
        await client.reader.readuntil(b"abc")
        asyncio.get_running_loop().call_later(0.05, bench.engine.deliver, 0, "b", "length")
    assert b"data: [DONE]\n\n" in await client.reader.read()
    await silent.cut()
    client.writer.close()
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(port)


async def test_no_further_file_can_be_opened(
    authority: Authority, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.01)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2

    def accept_later(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(listener)

    async with over_socket(**settings) as (_, port):
        monkeypatch.setattr(socket.socket, "accept", accept_later)
        assert (await version(port, authority.client()))[0] == 200
        assert failures == []


# --- files ---


def test_files_that_cannot_be_used(tmp_path: Path, authority: Authority) -> None:
    """Each refusal begins with the file, or the setting, at fault."""
    certificate, key = map(str, authority.issue())
    other = str(authority.issue("other")[1])
    garbage, encrypted = tmp_path / "garbage", tmp_path / "encrypted.key"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    loaded = load_pem_private_key(Path(key).read_bytes(), None)
    encrypted.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")))
    for fault, files in (
        ("/no/file", {"certfile": "/no/file"}),
        (tmp_path, {"certfile": certificate, "keyfile": tmp_path}),
        (certificate, {"certfile": certificate}),
        (key, {"certfile": key, "keyfile": key}),
        (f"the key in {other}", {"certfile": certificate, "keyfile": other}),
        (garbage, {"certfile": garbage}),
        (key, {"certfile": certificate, "keyfile": key, "ca_certs": key}),
        (f"the key in {encrypted}", {"certfile": certificate, "keyfile": encrypted}),
        ("ssl_keyfile", {"keyfile": key}),
        ("ssl_ca_certs", {"ca_certs": certificate}),
    ):
        named: dict[str, Any] = {f"ssl_{name}": str(file) for name, file in files.items()}
        with pytest.raises(TlsError) as caught:
            TlsFiles.of(OpenAiBlsSettings(**named))
        assert str(caught.value).startswith(f"{fault} ")


def test_one_file_with_certificate_and_key(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue()
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    assert TlsFiles.of(OpenAiBlsSettings(ssl_certfile=str(both))) is not None
    assert TlsFiles.of(OpenAiBlsSettings()) is None
