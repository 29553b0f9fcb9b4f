"""A Python that has imported vLLM already, for the tests that start no engine: vLLM takes long to import.

::

    <vllm's python> warm.py SOCKET

Each script that the command of `command` is called with runs in a fork of this process, with the caller's folder,
environment, standard streams and arguments. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import socket
import stat
import sys
import traceback
from pathlib import Path
from typing import Any

# With nothing of Python's site: it starts in milliseconds.
_COMMAND = """#!{python} -SE
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    status = server.recv(16)
sys.exit(int(status or b"1"))
"""


def command(folder: Path, address: Path) -> str:
    """Path of a command, made in a folder, that is called as an interpreter with the path of a script."""
    path = folder / "python"
    path.write_text(_COMMAND.format(python=sys.executable, address=str(address)), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def main() -> None:
    """Import vLLM and run scripts."""
    # This folder's modules have names that could hide others.
    del sys.path[0]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        import vllm.engine.arg_utils  # noqa: F401

        listener.listen()
        # Whoever started this says when it is listening by this line, and that it may end by the end of the input.
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            with caller:
                _, streams, _, _ = socket.recv_fds(caller, 1, 3)
                asked = json.loads(caller.makefile("rb").read())
                child = os.fork()
                if not child:
                    os._exit(_run(streams, *asked))
                for stream in streams:
                    os.close(stream)
                caller.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _run(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run a script in this process; its exit status."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path[:0] = [str(Path(words[0]).parent), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        runpy.run_path(words[0], run_name="__main__")
        status: Any = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 1


if __name__ == "__main__":
    main()
