"""The processes of a server and of a build: each one's name, who starts it, who ends it, and what joins it to others.

The only place where processes are named: log lines, /proc and the table of docs/architecture.md have the names that are
here. A module that starts a process is named by the `Process` that it starts.
"""

from __future__ import annotations

from typing import NamedTuple

SERVER_MARK = "OPENAI_BLS_LAUNCH_MARK"
"""Environment variable that every process of one server carries."""
ENGINE_MARK = "OPENAI_BLS_PROCESS_MARK"
"""Environment variable that every process of one engine's process carries."""
ENGINE_FOLDER = "OPENAI_BLS_PROCESS_FOLDER"
"""Environment variable with the temporary folder of an engine's process."""

STUB_PROGRAM = "triton_python_backend_stub"
"""Program of Triton's Python backend that runs a model.py."""
STUB_COMM = STUB_PROGRAM[:15]
"""Its name in /proc/<pid>/stat, as the kernel cuts it."""


class Process(NamedTuple):
    """A kind of process."""

    name: str
    """Name in log lines and in the docs."""
    program: str
    """Program or script that it runs."""
    started_by: str
    ended_by: str
    joined_by: str
    """Sockets, pipes and shared memory between it and others."""
    starters: tuple[str, ...] = ()
    """Modules that start it, by their paths in the package; empty if a program of others does."""


LAUNCHER = Process(
    "launcher",
    "`openai-bls serve`",
    "you, or the container",
    "Ctrl-C or SIGTERM, when the server has drained; a second one kills the server",
    "Triton's HTTP and gRPC ports on loopback",
)
SERVER_GUARDIAN = Process(
    "server guardian",
    "`guardian.py`",
    "launcher",
    "the end of the last process below it; it drains the server when the launcher has gone",
    "a socket pair to the launcher, whose end-of-file is the launcher's death",
    ("launcher/tritonserver/process.py",),
)
TRITONSERVER = Process(
    "tritonserver",
    "`tritonserver`, or the `mpirun` of several",
    "server guardian",
    "server guardian: SIGTERM, and SIGKILL after `--exit-timeout` and 10 s",
    "ports 8000, 8001, 8002",
    ("core/processes/guardian.py", "launcher/shim.py"),
)
STUB = Process(
    "stub",
    f"`{STUB_PROGRAM}`, one for each instance of a Python model",
    "tritonserver",
    "tritonserver, at the unload; the launcher kills one that is stopped or left behind",
    "shared memory with tritonserver; a socket in `/dev/shm/openai_bls-sockets-…`; port 9000 of `openai_bls`",
)
ENGINE_GUARDIAN = Process(
    "engine guardian",
    "`guardian.py`",
    "stub of `tensorrt_llm`, or `openai-bls engine`, which becomes it",
    "the end of the last process below it; it ends the engine when the stub has gone",
    "a socket pair to the stub; a pipe for the log",
    ("transport/engine_process/process.py", "commands/engine.py"),
)
ENGINE = Process(
    "engine",
    "`bootstrap.py`, where an engine has a separate process",
    "engine guardian",
    "engine guardian: SIGTERM at the unload, SIGKILL after 20 s or when it is silent",
    "`engine.sock`; the stub hands connections of `openai_bls` over it (SCM_RIGHTS)",
    ("core/processes/guardian.py",),
)
ENGINE_WORKER = Process(
    "engine worker",
    "what the engine's library starts, one for each GPU",
    "engine, or stub of `tensorrt_llm`",
    "its starter; else the guardian above it",
    "the library's own",
)
IMAGE_DECODER = Process(
    "image decoder",
    "`worker.py` with `decode_worker.py`, two at most",
    "stub of `openai_bls`",
    "the end of its input; the kernel after 10 s of CPU time, its starter after 15 s",
    "pipes of its input and output",
    ("pipeline/media/decoder.py",),
)
AUDIO_DECODER = Process(
    "audio decoder",
    "`worker.py` with `audio/decode_worker.py`, two at most",
    "stub of `openai_bls`",
    "the end of its input; the kernel after 20 s of CPU time, its starter after 30 s",
    "pipes of its input and output",
    ("pipeline/media/audio/decoder.py",),
)
TEMPLATE_RENDERER = Process(
    "template renderer",
    "`worker.py` with `template_worker.py`",
    "stub of `preprocessing`",
    "the end of its input; the kernel after 2 s of CPU time, its starter after 120 s",
    "pipes of its input and output",
    ("triton_models/preprocessing/request_templates.py",),
)
GRAMMAR_TRIAL = Process(
    "grammar trial",
    "`trial_worker.py`, and a child for each grammar",
    "engine, or stub of `tensorrt_llm`",
    "the end of its input; the kernel ends a child after 2 s of CPU time, the starter all of it after 120 s",
    "pipes of its input and output",
    ("engines/grammars/trials.py", "engines/grammars/trial_worker.py"),
)
BUILD = Process(
    "build",
    "`openai-bls build`",
    "you; the launcher for `serve --model`",
    "its own end; SIGTERM, also of the launcher",
    "the model repository",
    ("commands/building/first_engine.py",),
)
BUILD_WORKER = Process(
    "build worker",
    "a recipe's conversion or self-test, `pip download`",
    "build",
    "build; a recipe's also ends when the build has gone",
    "a pipe, or a log file",
    ("builder/source/named_models.py",),
)

PROCESSES = (
    LAUNCHER,
    SERVER_GUARDIAN,
    TRITONSERVER,
    STUB,
    ENGINE_GUARDIAN,
    ENGINE,
    ENGINE_WORKER,
    IMAGE_DECODER,
    AUDIO_DECODER,
    TEMPLATE_RENDERER,
    GRAMMAR_TRIAL,
    BUILD,
    BUILD_WORKER,
)
"""All of them, a starter before what it starts."""
