from __future__ import annotations

import subprocess
import sys

from openai_bls.server_process import is_listening

_PROGRAM = """
import socket
with socket.socket({family}) as s:
    s.bind(({host!r}, 0))
    print(flush=True)
    input()
    s.listen()
    print(flush=True)
    input()
    s.close()
    print(flush=True)
    input()
"""


def _follow(family: str, host: str) -> list[bool]:
    seen = []
    program = _PROGRAM.format(family=family, host=host)
    with subprocess.Popen(
        [sys.executable, "-ISc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.read(1)
            seen.append(is_listening(process.pid))
            process.stdin.write(b"\n")
    return seen


def test_a_process_listens_from_listen_to_close() -> None:
    assert _follow("socket.AF_INET", "127.0.0.1") == [False, True, False]


def test_a_process_that_does_not_exist() -> None:
    assert not is_listening(2**22 + 1)
