"""For all tests."""

from __future__ import annotations

import functools
import os
import signal
import ssl
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# Without a GPU our kernels run in Triton's interpreter (the language's, not the server's), which must be said before
# anything imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test fails because the machine is slow.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Clients of httpx and openai read all of the machine's certificates as they are made: 25 ms, more than the one request
# that many are made for. Here they share what has been read.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# What a shell without job control starts in the background ignores Ctrl-C, and so would the programs of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TRITON = Path(__file__).parent / "tests" / "triton"
# Tests that need an installed vLLM, and those of them that share no engine with the others.
VLLM = "engines/vllm/tests_vllm/installed"
OWN_VLLM = tuple(f"{VLLM}/{name}.py" for name in ("processes/test_two_machines", "processes/test_two_workers"))
# Files of tests/triton that start servers without the function of that name.
OTHER_OWN_SERVER = ("test_contenders.py", "test_ranks.py", "test_torture.py")


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Work units of parallel runs: a file each, but those that talk to the session's server are one.

    So one worker starts that server, loads the reference, and keeps both to the end of these files, which come early;
    the others meanwhile take the files that start servers of their own. The files that share one vLLM are a unit too.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        files = {path: path.read_text(encoding="utf-8") for path in TRITON.rglob("test_*.py")}
        starts = {path for path, text in files.items() if "run_server" in text or path.name in OTHER_OWN_SERVER}
        self._own = {f"tests/triton/{path.relative_to(TRITON).as_posix()}" for path in starts}

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        if path.startswith(f"{VLLM}/") and path not in OWN_VLLM:
            return VLLM
        return "tests/triton" if path.startswith("tests/triton/") and path not in self._own else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM's tests come first: they take minutes, in which the other workers have the rest."""
    items.sort(key=lambda item: not item.nodeid.startswith(f"{VLLM}/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
