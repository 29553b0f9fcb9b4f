"""The watch over the machines of one engine, over real sockets."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_vllm.engine import Opened, VllmEngine
from openai_bls_vllm.multi_node.nodes import Nodes
from openai_bls_vllm.multi_node.watch import Gathering, Link
from tests.engine_contract.support import Recorder
from tests.unit.core_support import WAIT_S
from tests_vllm.engine.multi_node.support import machines
from tests_vllm.engine.vllm_support import INFO, ScriptedClient, asked


@contextmanager
def gathering(nodes: Nodes) -> Iterator[tuple[Gathering, queue.Queue[str]]]:
    """The first machine, and what it tells of lost ones."""
    lost: queue.Queue[str] = queue.Queue()
    made = Gathering(nodes)
    made.watch(lost.put)
    try:
        yield made, lost
    finally:
        made.close()


def test_all_come_and_are_let_go() -> None:
    first, second, third = machines(3)
    with gathering(first) as (made, lost):
        links = [Link(nodes) for nodes in (third, second)]
        made.wait()
        made.close()
        assert [link.wait() for link in links] == [True, True]
        assert lost.empty()


def test_a_machine_that_comes_first_waits() -> None:
    first, second = machines(2)
    came: queue.Queue[Link] = queue.Queue()
    thread = threading.Thread(target=lambda: came.put(Link(second, retry_s=0.01)), daemon=True)
    thread.start()
    with gathering(first) as (made, _):
        made.wait()
        link = came.get(timeout=WAIT_S)
    assert link.wait()


def test_a_machine_that_is_gone_is_told_once() -> None:
    first, second, third = machines(3)
    with gathering(first) as (made, lost):
        links = [Link(second), Link(third)]
        made.wait()
        links[0].hang_up()
        assert "machine 1 of the engine (127.0.0.1) is gone" in lost.get(timeout=WAIT_S)
        links[1].hang_up()
    assert lost.empty()


def test_a_machine_that_is_gone_before_all_have_come() -> None:
    first, second, _ = machines(3)
    with gathering(first) as (made, lost):
        Link(second).hang_up()
        assert "machine 1 of the engine" in lost.get(timeout=WAIT_S)
        with pytest.raises(EngineLoadError, match="machine 1 "):
            made.wait()


def test_machines_that_do_not_come_are_named() -> None:
    first, second, *_ = machines(4, join_timeout_s=0)
    with gathering(first) as (made, _):
        link = Link(second)
        with pytest.raises(EngineLoadError, match=r"machines 2, 3 of 4 .* 0 s"):
            made.wait()
        link.hang_up()


def test_a_first_machine_that_does_not_come() -> None:
    with pytest.raises(EngineLoadError, match=r"127.0.0.1:\d+ .* 0 s"):
        Link(machines(2, join_timeout_s=0)[1])


@pytest.mark.parametrize(
    ("nnodes", "rank", "says"),
    [(3, 1, "nnodes is 3 here and 2"), (2, 0, "node_rank is 0"), (2, 2, "node_rank is 2"), (2, 1, "another machine")],
)
def test_a_machine_that_is_refused(nnodes: int, rank: int, says: str) -> None:
    first, second = machines(2)
    with gathering(first) as (made, lost):
        link = Link(second)
        made.wait()
        with pytest.raises(EngineLoadError, match=says):
            Link(Nodes(nnodes=nnodes, node_rank=rank, master_addr="127.0.0.1", master_port=first.master_port))
        assert lost.empty()
        made.close()
        assert link.wait()


def hung_up(stranger: socket.socket, data: bytes) -> bool:
    """True if the other side closes the connection after `data`, or before all of that has been sent."""
    try:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        return stranger.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_strangers_are_not_heard() -> None:
    first, second = machines(2)
    with gathering(first) as (made, lost):
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100):
            with socket.create_connection(("127.0.0.1", first.watch_port), WAIT_S) as stranger:
                assert hung_up(stranger, data)
        link = Link(second)
        made.wait()
        assert lost.empty()
    assert link.wait()


def test_another_program_at_the_port() -> None:
    _, second = machines(2)
    with socket.create_server(("127.0.0.1", second.watch_port)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"220 welcome " + b"x" * 2000)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(EngineLoadError, match=f"{second.watch_port} .*first machine.*master_addr"):
            Link(second)
        with pytest.raises(EngineLoadError, match=f"{second.watch_port}, .*master_port"):
            Gathering(second)


@pytest.mark.parametrize("lost", [False, True])
def test_an_engine_dies_with_a_machine_and_tells_the_others_how_it_ended(lost: bool) -> None:
    first, second, third = machines(3)
    made, recorder = Gathering(first), Recorder()
    links = [Link(second), Link(third)]
    made.wait()
    engine = VllmEngine(lambda: Opened(ScriptedClient(), INFO, gathering=made), recorder)
    if lost:
        engine.submit(asked())
        links[0].hang_up()
        recorder.wait_end(1)
        assert recorder.ends[1].error == ENGINE_FAILED
    engine.close()
    assert links[1].wait() is not lost
