from __future__ import annotations

import socket

import pytest

from openai_bls.api.http.listening import listener
from openai_bls.api.http.listening.listener import PortInUseError, SharedListener
from tests.unit.core_support import WAIT_S, free_port

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    return free_port()


def connects(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def test_instances_of_one_server_share_a_port(port: int) -> None:
    first = SharedListener(HOST, port, owner=1)
    second = SharedListener(HOST, port, owner=1)
    assert connects(port)
    first.close()
    assert connects(port)
    third = SharedListener(HOST, port, owner=1)
    second.close()
    third.close()
    assert not connects(port)


def test_another_server_is_refused_while_one_has_the_port(port: int) -> None:
    first = SharedListener(HOST, port, owner=11)
    second = SharedListener(HOST, port, owner=11)
    first.close()
    for _ in range(2):
        with pytest.raises(PortInUseError, match=r"process 11") as info:
            SharedListener(HOST, port, owner=22)
        assert "OPENAI_BLS_HTTP_PORT" in str(info.value)
        assert "\n" not in str(info.value)
    second.close()
    after = SharedListener(HOST, port, owner=22)
    with pytest.raises(PortInUseError, match=r"process 22"):
        SharedListener(HOST, port, owner=11)
    after.close()


def test_another_program_has_the_port(port: int) -> None:
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        with pytest.raises(PortInUseError, match=f"{HOST}:{port}"):
            SharedListener(HOST, port, owner=1)
    # The refusal has left nothing locked.
    SharedListener(HOST, port, owner=2).close()


def test_an_address_that_is_not_ours(port: int) -> None:
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(PortInUseError):
            SharedListener(host, port, owner=1)
    SharedListener(HOST, port, owner=2).close()


def test_closing_twice_is_harmless(port: int) -> None:
    made = SharedListener(HOST, port, owner=1)
    made.close()
    made.close()


def test_servers_of_other_id_namespaces_are_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a network may have the same process id."""
    first = SharedListener(HOST, port, owner=1)
    monkeypatch.setattr(listener, "process_identity", lambda pid: (5, pid, "0"))
    with pytest.raises(PortInUseError, match="process 1"):
        SharedListener(HOST, port, owner=1)
    first.close()
    SharedListener(HOST, port, owner=1).close()
