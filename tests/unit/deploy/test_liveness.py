"""The liveness probe, run as the kubelet runs it, against the real /v1 application."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openai_bls.api.http.listening.listener import SharedListener
from openai_bls.api.http.uvicorn_server import HttpServer
from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import OverloadedError
from tests.certificates import Authority
from tests.unit.api.http_support import application, over_socket
from tests.unit.core_support import WAIT_S, Bench, free_port
from tests.unit.deploy.support import CHART

SCRIPT = CHART / "files" / "liveness.py"


class Probed:
    """A server, and the probe on it; the engine answers requests as `answer` says."""

    def __init__(self, bench: Bench, port: int, state: Path, **environment: str) -> None:
        self.bench = bench
        self.port = port
        self.state = state
        self.environment = environment

    def worked(self, steps: int) -> None:
        """The engine has made so many steps since it was loaded."""
        self.bench.engine.stats = EngineStats(1, 5, 0.5, steps, steps)

    async def probe(
        self, *options: str, answer: bool = True, timeout: str = "20", key: str = ""
    ) -> tuple[int, str, int]:
        """Exit code, what it says, and the requests that it made."""
        before = len(self.bench.engine.requests)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(SCRIPT), str(self.port), timeout, str(self.state), *options),
            env=({"OPENAI_BLS_API_KEY": key} if key else {}) | self.environment,
            stderr=asyncio.subprocess.PIPE,
        )
        ended = asyncio.ensure_future(process.communicate())
        while not ended.done():
            if answer and len(self.bench.engine.requests) > before:
                self.bench.engine.deliver(-1, "a", "length")
            await asyncio.sleep(0.01)
        _, said = await asyncio.wait_for(ended, WAIT_S)
        assert process.returncode is not None
        return process.returncode, said.decode(), len(self.bench.engine.requests) - before


@pytest.fixture
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Probed]:
    """With the API key that its parameter says, if any."""
    bench = Bench(api_key=getattr(request, "param", ""))
    port = free_port()
    running = HttpServer(application(bench), bench.service, SharedListener("127.0.0.1", port, owner=1))
    running.start()
    try:
        yield Probed(bench, port, tmp_path / "state.json")
    finally:
        await running.stop()


async def test_an_idle_server_is_asked_for_one_token_and_a_busy_one_is_not(server: Probed) -> None:
    """A busy server's queue may be long: a probe at its end would have the server killed for being used."""
    for _ in range(2):
        server.worked(1000)
        assert await server.probe() == (0, "", 1)
    assert server.bench.engine.requests[0].max_tokens == 1
    server.worked(1001)
    assert await server.probe(answer=False, timeout="2") == (0, "", 0)
    # Loaded again.
    server.worked(0)
    assert await server.probe() == (0, "", 1)
    server.worked(5)
    assert await server.probe(answer=False, timeout="2") == (0, "", 0)


async def test_an_engine_that_is_stuck_or_whose_process_has_died(server: Probed) -> None:
    """A dead one has fewer steps than before, none at all, and requests that end with an error are no work."""
    server.worked(7)
    assert await server.probe() == (0, "", 1)
    code, said, requests = await server.probe(answer=False, timeout="0.5")
    assert (code, requests) == (1, 1)
    assert said.startswith("POST /v1/completions was not answered: ")
    server.worked(8)
    assert await server.probe() == (0, "", 0)
    server.bench.engine.stats = None
    server.bench.prompts.result = OverloadedError("The engine is not there.")
    for _ in range(2):
        code, said, _ = await server.probe()
        assert code == 1
        assert said.startswith("a request for one token was answered 503: ")


@pytest.mark.parametrize("server", ["secret"], indirect=True)
async def test_the_key(server: Probed) -> None:
    """It is the server's; that it is not known here is no reason to start the server again."""
    server.worked(7)
    for _ in range(2):
        assert await server.probe(key="") == (0, "", 0)
    assert await server.probe(key="secret") == (0, "", 1)


@pytest.mark.parametrize("server", ["secret"], indirect=True)
async def test_an_engine_that_is_stuck_where_no_key_is_known(server: Probed) -> None:
    """It makes nothing while there are requests; one that has just come is not yet a sign."""
    server.worked(7)
    assert await server.probe() == (0, "", 0)
    server.bench.service.count(1)
    assert await server.probe() == (0, "", 0)
    for _ in range(2):
        code, said, _ = await server.probe()
        assert (code, said) == (1, "the engine has made nothing for 1 requests since the last probe\n")
    server.worked(8)
    assert await server.probe() == (0, "", 0)
    server.bench.service.count(-1)
    assert await server.probe() == (0, "", 0)
    server.bench.engine.stats = EngineStats(0, 0, 0.0, 8, 8, failed=True)
    code, said, _ = await server.probe()
    assert code == 1
    assert said.startswith("/health was answered 503: ")


async def test_a_server_whose_engine_is_elsewhere(server: Probed) -> None:
    """It lives as long as it answers: another container's engine is no reason to start it again."""
    server.worked(7)
    server.bench.service.count(1)
    for _ in range(2):
        assert await server.probe("--of", "server", answer=False) == (0, "", 0)
    server.bench.engine.stats = EngineStats(0, 0, 0.0, 8, 8, failed=True)
    assert await server.probe("--of", "server", answer=False) == (0, "", 0)


async def test_an_engine_elsewhere(server: Probed) -> None:
    """Stuck is one that makes nothing while there are requests; nothing is asked of it, and no key is needed."""
    server.worked(7)
    for _ in range(2):
        assert await server.probe("--of", "engine") == (0, "", 0)
    server.bench.service.count(1)
    assert await server.probe("--of", "engine") == (0, "", 0)
    code, said, _ = await server.probe("--of", "engine")
    assert (code, said) == (1, "the engine has made nothing for 1 requests since the last probe\n")
    server.worked(8)
    assert await server.probe("--of", "engine") == (0, "", 0)


async def test_an_engine_is_not_to_blame_for_its_server(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text("{}")
    gone = Probed(Bench(), free_port(), state)
    assert await gone.probe("--of", "engine") == (0, "", 0)
    # What the server told before it was started again says nothing of the engine.
    assert not state.exists()
    code, said, _ = await gone.probe("--of", "server")
    assert code == 1
    assert said.startswith("GET /metrics was not answered: ")


async def test_https(tmp_path: Path) -> None:
    settings = Authority(tmp_path).settings()
    async with over_socket(**settings) as (bench, port):
        certificate = {"OPENAI_BLS_SSL_CERTFILE": settings["ssl_certfile"]}
        assert await Probed(bench, port, tmp_path / "state.json", **certificate).probe() == (0, "", 1)
        # In the engine's container, which has no settings of the server.
        bench.service.count(1)
        elsewhere = Probed(bench, port, tmp_path / "engine.json")
        assert await elsewhere.probe("--of", "engine", "--https") == (0, "", 0)
        assert (await elsewhere.probe("--of", "engine", "--https"))[0] == 1
        bench.service.count(-1)


async def test_client_certificates(tmp_path: Path) -> None:
    """The probe has none."""
    settings = {**Authority(tmp_path).settings(), "ssl_ca_certs": str(Authority(tmp_path, "clients").file)}
    async with over_socket(**settings) as (bench, port):
        environment = {"OPENAI_BLS_SSL_CERTFILE": settings["ssl_certfile"]}
        server = Probed(bench, port, tmp_path / "state.json", **environment)
        bench.service.count(1)
        assert await server.probe() == (0, "", 0)
        code, said, _ = await server.probe()
        assert (code, said) == (1, "the engine has made nothing for 1 requests since the last probe\n")
        bench.service.count(-1)
        assert await server.probe() == (0, "", 0)


async def test_a_state_that_cannot_be_read_counts_as_none(server: Probed) -> None:
    server.worked(7)
    for content in ("", "no JSON", "{}"):
        server.state.write_text(content, encoding="utf-8")
        assert await server.probe() == (0, "", 1)
        assert json.loads(server.state.read_text(encoding="utf-8"))["openai_bls_engine_steps_total"] == 7


async def test_a_server_that_is_gone(tmp_path: Path) -> None:
    code, said, _ = await Probed(Bench(), free_port(), tmp_path / "state.json").probe()
    assert code == 1
    assert said.startswith("GET /metrics was not answered: ")
