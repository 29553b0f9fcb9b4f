"""Engine's process: loads one engine of the registry and serves it on a socket until it is told to end.

Its exit status is 0 after an order to end, 2 if the engine could not be loaded, 3 if it failed while it served.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from openai_bls.core.engine import Engine
from openai_bls.core.machine.memory import settle
from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.processes.folder import note_shared_memory
from openai_bls.core.settings import SettingsError
from openai_bls.engines.registry import create_engine, run_headless
from openai_bls.transport.engine_process import handover
from openai_bls.transport.engine_process import options as worker_options
from openai_bls.transport.engine_process.handshake import Role, Status
from openai_bls.transport.engine_process.listening import EngineListener, EngineState
from openai_bls.transport.engine_process.log_lines import LevelFormatter
from openai_bls.transport.ipc.server import ExchangeServer

logger = logging.getLogger(__name__)

NOT_LOADED, FAILED = 2, 3
_LOOK_S = 1.0  # between two looks at the engine's health


def main(arguments: Sequence[str]) -> int:
    """Run an engine's process; returns the exit status, or ends the process."""
    parser = ArgumentParser(prog="openai-bls engine", allow_abbrev=False)
    worker_options.add_arguments(parser)
    options = parser.parse_args(arguments)
    _log(supervised=options.supervised is not None)
    return _headless(options) if options.headless else Worker(options).run()


def _headless(options: Namespace) -> NoReturn:
    """Run a machine's workers alone, and end with them."""
    try:
        settings, overrides = worker_options.engine_settings(options, os.environ)
        run_headless(options.model_dir.absolute(), overrides, settings)
    except (EngineLoadError, SettingsError) as error:
        _leave(_refuse(str(error)))


class Worker:
    """One engine and its listener.

    Args:
        options: options of the command line.
    """

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._exchange = ExchangeServer(None, options.supervised or 0)
        self._handovers = handover.Handovers(self._exchange.connect)
        self._state = EngineState()
        self._told_to_end = threading.Event()
        self._loading = True

    def run(self) -> int:
        """Load and serve until told to end, or until the engine fails."""
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        try:
            listener = self._listen()
        except EngineLoadError as error:
            return _refuse(str(error))
        listener.start()
        engine = self._load()
        note_shared_memory()
        if engine is None:
            listener.close()
            _leave(NOT_LOADED)
        self._exchange.start(engine)
        self._loading = False
        # An engine may have put its own in their places.
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        self._state.set(Status("ready"))
        logger.info("the engine %s is ready (process %d)", engine.info.engine, os.getpid())
        while not self._told_to_end.wait(_LOOK_S):
            if engine.stats().failed:
                _refuse("the engine has failed, and its process with it; the log says why")
                # Without a goodbye: whoever is connected sees that it was not on purpose.
                _leave(FAILED)
        listener.close()
        engine.close()
        self._handovers.settle()
        self._exchange.close()
        _leave(0)

    def _listen(self) -> EngineListener:
        options = self._options
        address = worker_options.listen_address(options)
        return EngineListener(address, self._state, self._serve, mode=options.socket_mode)

    def _load(self) -> Engine | None:
        # Garbage collections during imports find next to nothing and take a tenth of the time.
        gc.disable()
        try:
            settings, overrides = worker_options.engine_settings(self._options, os.environ)
            engine = create_engine(self._options.model_dir.absolute(), self._exchange.on_step, overrides, settings)
        except (EngineLoadError, SettingsError) as error:
            self._fail(str(error))
            return None
        except ModuleNotFoundError as error:
            package = (error.name or str(error)).partition(".")[0]
            self._fail(f"{sys.executable} does not have the package {package}, which the engine needs")
            return None
        except Exception as error:
            logger.exception("the engine could not be loaded")
            self._fail(f"the engine could not be loaded: {type(error).__name__}: {first_line(error)}")
            return None
        settle()
        return engine

    def _fail(self, sentence: str) -> None:
        self._state.set(Status("failed", error=sentence))
        _refuse(sentence)

    def _serve(self, role: Role, connection: socket.socket) -> None:
        if role == "handover":
            self._handovers.receive(connection)
        else:
            self._exchange.connect(connection)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self._loading:
            # Nobody is served yet, and loading cannot be broken off.
            _leave(128 + number)
        self._told_to_end.set()


def _refuse(sentence: str) -> int:
    """Say why there is no engine, in the words that Triton's side looks for."""
    sys.stderr.write(f"openai_bls: error: {sentence}\n")
    sys.stderr.flush()
    return NOT_LOADED


def _leave(status: int) -> NoReturn:
    """End without taking apart what is loaded, which frees object by object what the system frees at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _log(*, supervised: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        LevelFormatter() if supervised else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    ours = logging.getLogger("openai_bls")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
