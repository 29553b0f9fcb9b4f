"""Command `engine`: an engine in a separate process, which Triton's side connects to."""

from __future__ import annotations

import os
import socket
import sys
from argparse import ArgumentParser, Namespace

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.processes import folder as process_folder
from openai_bls.core.processes.process_tree import guarded
from openai_bls.core.settings import ENV_PREFIX
from openai_bls.engines.registry import VARIABLE as PLUGINS_VARIABLE
from openai_bls.engines.registry import passed_on
from openai_bls.launcher.errors import LaunchError
from openai_bls.transport.engine_process import options as worker_options
from openai_bls.transport.engine_process import status
from openai_bls.transport.engine_process.handshake import HandshakeError
from openai_bls.transport.engine_process.process import BOOTSTRAP, find_interpreter

# From the order to end to SIGKILL.
_GRACE_S = 20.0
_FOLLOW_S = 1.0
# A machine that is not the first ends after the first one, however long that one's requests take.
_HEADLESS_GRACE_S = 86_400.0


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Load an engine with this interpreter and serve it on a socket, without Triton: the model tensorrt_llm of a"
        " server connects to it by its setting engine_address (OPENAI_BLS_ENGINE_ADDRESS), unix:PATH."
    )
    worker_options.add_arguments(parser)


def run(options: Namespace) -> int:
    """Become the engine's guardian, which runs the engine's process and leaves nothing behind."""
    try:
        if options.status:
            return _status(options)
        if options.model_dir is None:
            raise LaunchError("--model-dir is needed: the engine's folder, <model repository>/tensorrt_llm/1")
        if not options.headless:
            worker_options.listen_address(options)
        named = options.engine_python or os.environ.get(f"{ENV_PREFIX}ENGINE_PYTHON", "")
        python = find_interpreter(named, os.environ) if named else sys.executable
        folder, environ = process_folder.make({**os.environ, PLUGINS_VARIABLE: passed_on()})
    except EngineLoadError as error:
        raise LaunchError(str(error)) from None
    # Both ends stay in the guardian: it ends by signals alone.
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.set_inheritable(True)
    command = [python, str(BOOTSTRAP), *options.words]
    sys.stdout.flush()
    grace_s = _HEADLESS_GRACE_S if options.headless else _GRACE_S
    words = guarded(command, theirs.fileno(), grace_s, folder=folder, follow=_FOLLOW_S, own_session=False)
    os.execve(words[0], words, environ)


def _status(options: Namespace) -> int:
    address = worker_options.listen_address(options)
    try:
        found = status.ask(address)
    except HandshakeError as error:
        # Docker knows no other statuses than 0 and 1.
        print(error)
        return 1
    print(f"{found.state}: {found.error}" if found.error else found.state)
    return 0 if found.state == "ready" else 1
