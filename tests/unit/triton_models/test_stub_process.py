from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> str:
    # In a process of its own: this one goes on to use torch.
    code = f"from openai_bls.triton_models import stub_process\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_cannot_be_had_any_more() -> None:
    run(
        "import importlib.util, os\n"
        "os.environ['TOKENIZERS_PARALLELISM'] = 'true'\n"
        "stub_process.keep_torch_out()\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "try:\n"
        "    import torch\n"
        "except ImportError:\n"
        "    pass\n"
        "else:\n"
        "    raise SystemExit('imported')\n"
        # The environment may say otherwise.
        "assert os.environ['TOKENIZERS_PARALLELISM'] == 'true'\n"
        "assert os.environ['TRANSFORMERS_NO_ADVISORY_WARNINGS'] == '1'\n"
    )


def test_torch_that_is_there_stays() -> None:
    run(
        "import sys, types\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "stub_process.keep_torch_out()\n"
        "assert sys.modules['torch'] is torch\n"
    )


def test_collections_begin_when_all_is_loaded_and_pass_over_it() -> None:
    run(
        "import gc, weakref\n"
        "stub_process.begin()\n"
        "assert not gc.isenabled()\n"
        "loaded = [[] for _ in range(1000)]\n"
        "for _ in range(2):\n"
        "    stub_process.settle()\n"
        "assert gc.isenabled()\n"
        "assert gc.get_freeze_count() > 1000\n"
        "class Later: pass\n"
        "later = Later()\n"
        "later.itself, found = later, weakref.ref(later)\n"
        "del later\n"
        "gc.collect()\n"
        "assert found() is None\n"
    )


@pytest.mark.parametrize(("module", "said"), [("torch", "at exit"), ("mpi4py", "at exit, taken apart")])
def test_a_process_ends_without_taking_apart_what_is_loaded(module: str, said: str) -> None:
    """What libraries do at the end is done, and MPI, whose end comes last, has it."""
    found = run(
        "import atexit, sys\n"
        "class Loaded:\n"
        "    def __del__(self):\n"
        "        print(', taken apart', end='')\n"
        "stub_process.begin()\n"
        f"sys.modules['{module}'] = Loaded()\n"
        "atexit.register(print, 'at exit', end='')\n"
        "stub_process.settle()\n"
        "stub_process.release()\n"
    )
    assert found == said


MODELS = sorted((Path(__file__).parents[3] / "model_repository").glob("*/1/model.py"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parts[-3])
def test_every_model_begins_alike(path: Path) -> None:
    (_, body) = path.read_text().split("def initialize(")
    assert "stub_process.begin()" in body
    assert "stub_process.settle()" in body
    # Refuses an emptied config.pbtxt.
    assert "pb_utils.check_config(args)" in body


_CHILD = """
import os, socket
from openai_bls.triton_models import stub_process

def alive(*found):
    return [f.fileno() >= 0 and f.getsockname() is not None for f in found]

mine = socket.create_server(("127.0.0.1", 0))
outgoing = socket.create_connection(mine.getsockname())
pair = socket.socketpair()
input()
closed = stub_process.close_inherited_sockets()
print(closed, alive(mine, outgoing, *pair), os.fstat(int(input())) is not None, flush=True)
input()
"""


def test_inherited_connections_are_closed_and_no_others() -> None:
    """As after a load: a child has the server's listener and a client's connection, which the server then closes."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as first,
        socket.create_connection(listener.getsockname()) as second,
    ):
        accepted = [listener.accept()[0] for _ in range(2)]
        # Of another family, standard error of a service for example.
        local, other = socket.socketpair()
        for inherited in (listener, *accepted, local):
            inherited.set_inheritable(True)
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            # One before the child looks, one after.
            accepted[0].close()
            child.stdin.write(f"\n{local.fileno()}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "3 [True, True, True, True] True\n"
            accepted[1].close()
            for client in (first, second):
                client.settimeout(30)
                assert client.recv(1) == b""
            assert child.poll() is None
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.wait(30) == 0
        local.close()
        other.close()


def test_nothing_is_inherited_where_nothing_can_be_seen() -> None:
    run("import os\nos.getppid = lambda: 0\nassert stub_process.close_inherited_sockets() == 0")


def test_regions_of_shared_memory_are_this_users_alone() -> None:
    """Those that are mapped here, as Triton makes them, and no other file."""
    run(
        "import mmap, os, pathlib, secrets, stat\n"
        "name = f'openai_bls-test-{secrets.token_hex(8)}'\n"
        "places = [pathlib.Path(path) for path in (f'/dev/shm/{name}', f'/dev/shm/{name}-other', f'/tmp/{name}')]\n"
        "for place in places:\n"
        "    place.write_bytes(b'x')\n"
        "    place.chmod(0o644)\n"
        "with places[0].open('r+b') as one, places[2].open('r+b') as two:\n"
        "    mapped = [mmap.mmap(file.fileno(), 1) for file in (one, two)]\n"
        "stub_process.begin()\n"
        "modes = [stat.S_IMODE(place.stat().st_mode) for place in places]\n"
        "for place in places: place.unlink()\n"
        "assert modes == [0o600, 0o644, 0o644], modes\n"
    )
