"""Search for a tritonserver, and the command that runs it.

Two kinds are known: the server of an NGC image, which needs nothing, and the one inside the
`nvidia-pytriton` wheel, which comes in pieces. The wheel's Python backend lies apart from its stubs
(one for each Python version), so a backends folder is assembled inside the environment, and the
stub needs libpython and the wheel's libraries.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from openai_bls.core import installing
from openai_bls.core.processes.machine import STUB_PROGRAM
from openai_bls.core.processes.process_tree import OUTER_LIBRARY_PATH_VARIABLE
from openai_bls.launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NGC_SERVER = Path("/opt/tritonserver/bin/tritonserver")

SHIM_MARK = "installed by: python -m openai_bls install-server"

# The pool is shared, per model instance, by every response on its way out and every BLS call
# awaiting its first response; with Triton's 32 the 33rd call waits for a whole time to first token.
# openai_bls makes at most 24 BLS calls at a time (`openai_bls.bls`); others in the repository may make more. An idle
# thread costs about 17 KB.
DEFAULT_THREAD_POOL_SIZE = 256
THREAD_POOL_VARIABLE = "OPENAI_BLS_THREAD_POOL_SIZE"


WHEEL_PYTHONS = ("3.10", "3.11", "3.12")
"""Versions of Python for the wheel's server, and for this library. The wheel has a stub for 3.13 too, but for that
there is no numpy below 2, which the stub needs."""


@dataclass(frozen=True)
class Server:
    """A tritonserver that can be run."""

    kind: Literal["image", "wheel"]
    binary: Path
    version: str


def find_server() -> Server:
    """The image's server where there is one, else one on PATH, else the wheel's."""
    if is_executable(NGC_SERVER):
        return _image_server(NGC_SERVER)
    for folder in os.get_exec_path():
        candidate = Path(folder) / "tritonserver"
        if is_executable(candidate) and not is_shim(candidate):
            return _image_server(candidate.resolve())
    root = wheel_root()
    if root is None and python_version() not in WHEEL_PYTHONS:
        raise LaunchError(f"no tritonserver: {no_wheel_reason(python_version())}, or run inside an NGC image")
    if root is None:
        raise LaunchError(
            "no tritonserver: run inside an NGC image (nvcr.io/nvidia/tritonserver), or "
            + installing.with_extra("server")
        )
    version = metadata.version("nvidia-pytriton")
    return Server("wheel", root / "bin" / "tritonserver", f"nvidia-pytriton {version}")


def _image_server(binary: Path) -> Server:
    # A variable of NVIDIA's images.
    return Server("image", binary, os.environ.get("TRITON_SERVER_VERSION", "unknown"))


def is_executable(path: Path) -> bool:
    """True if `path` is a file this user may run."""
    return path.is_file() and os.access(path, os.X_OK)


def is_shim(path: Path) -> bool:
    """True if `path` is the command that `install-server` wrote."""
    with path.open("rb") as file:
        return SHIM_MARK.encode() in file.read(512)


def wheel_root() -> Path | None:
    """The folder of the wheel's tritonserver, or None where the wheel is not installed."""
    # Asking for the spec does not import the package, which would draw in zmq, gevent and more.
    spec = importlib.util.find_spec("pytriton")
    for location in (spec.submodule_search_locations or []) if spec else []:
        root = Path(location) / "tritonserver"
        if (root / "bin" / "tritonserver").is_file():
            return root
    return None


def python_version() -> str:
    """This Python as the wheel names its stubs, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def no_wheel_reason(version: str) -> str:
    """Reason why the wheel's server does not run with this `version` of Python, and a remedy."""
    return (
        f"the server of the nvidia-pytriton wheel runs with Python {WHEEL_PYTHONS[0]} to {WHEEL_PYTHONS[-1]}, since it"
        f" needs numpy below 2, which later ones do not have; this is {version}: make the environment with one of these"
        " (`python3.11 -m venv`, or `make PYTHON=python3.11 env` in a source tree)"
    )


def stub_versions(root: Path) -> list[str]:
    """The Python versions that a wheel has stubs for, oldest first."""
    found = [path.parent.name for path in root.glob(f"python_backend_stubs/*/{STUB_PROGRAM}")]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def library_folder() -> Path | None:
    """The folder that holds this Python's shared library, which the stub is linked against."""
    name = f"libpython{python_version()}.so.1.0"
    libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (libdir, libdir / multiarch, Path(sys.base_prefix) / "lib"):
        if (folder / name).exists():
            return folder
    return None


def missing_library() -> str:
    """Sentence about this Python's shared library where there is none."""
    version = python_version()
    return (
        f"this Python lacks libpython{version}.so.1.0, which the Python backend loads: install libpython{version}, or"
        " use a Python configured with --enable-shared"
    )


def backends_folder() -> Path:
    """Folder of this environment's assembled backends."""
    return Path(sys.prefix) / "share" / "openai_bls" / "backends"


def assemble_backends(root: Path, target: Path | None = None) -> Path:
    """Put the wheel's Python backend and this Python's stub together and return the backends
    folder.

    Links, so that an upgrade of the wheel is followed. Each link is made under a name of its own
    and renamed into place, so that any number of processes may do this at once.
    """
    stub = root / "python_backend_stubs" / python_version() / STUB_PROGRAM
    if not stub.is_file():
        versions = stub_versions(root)
        raise LaunchError(
            f"the wheel's tritonserver has no stub for Python {python_version()}, only for"
            f" {versions[0]} to {versions[-1]}: make the environment with one of these"
        )
    if not os.access(stub, os.X_OK):
        stub.chmod(stub.stat().st_mode | 0o111)
    backends = target if target is not None else backends_folder()
    folder = backends / "python"
    folder.mkdir(parents=True, exist_ok=True)
    sources = [path for path in (root / "backends" / "python").iterdir() if path.is_file()]
    for source in [*sources, stub]:
        link = folder / source.name
        if link.is_symlink() and link.readlink() == source:
            continue
        temporary = folder / f".{source.name}.{secrets.token_hex(4)}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(source)
        temporary.replace(link)
    return backends


def server_environment(server: Server, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (by default this process's environment) with this Python first and its libraries."""
    environment = dict(os.environ if base is None else base)
    # The stub takes the environment whose python3 is first on PATH. The path must not be resolved:
    # in a virtual environment it is a link to the base Python.
    bin_folder = str(Path(sys.executable).parent)
    environment["PATH"] = _prepend([bin_folder], environment.get("PATH", os.defpath))
    if server.kind == "wheel":
        folders = [str(server.binary.parents[3] / "nvidia_pytriton.libs")]
        libpython = library_folder()
        if libpython is not None:
            folders.insert(0, str(libpython))
        old = environment.get("LD_LIBRARY_PATH", "")
        # An engine's process may be of another Python, for which these are the wrong ones.
        environment.setdefault(OUTER_LIBRARY_PATH_VARIABLE, old)
        environment["LD_LIBRARY_PATH"] = _prepend(folders, old)
    return environment


def server_command(server: Server, args: Sequence[str], *, backends: Path | None = None) -> list[str]:
    """The full command for `args`, with the flags added that the user has not given."""
    command = [str(server.binary), *args]
    if backends is not None and not has_flag(args, "--backend-directory"):
        command.append(f"--backend-directory={backends}")
    if not has_backend_setting(args, "thread-pool-size"):
        size = os.environ.get(THREAD_POOL_VARIABLE, str(DEFAULT_THREAD_POOL_SIZE))
        command.append(f"--backend-config=python,thread-pool-size={size}")
    return command


def prepare(args: Sequence[str]) -> tuple[Server, list[str], dict[str, str]]:
    """Find a server and make it ready for `args`: the server, the command, its environment."""
    server = find_server()
    backends = None
    if server.kind == "wheel":
        backends = assemble_backends(server.binary.parents[1])
    return server, server_command(server, args, backends=backends), server_environment(server)


def flag_values(args: Sequence[str], flag: str) -> list[str]:
    """Every value given for `flag`, as `--flag=value` or `--flag value`."""
    values = []
    for index, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name == flag:
            following = args[index + 1] if index + 1 < len(args) else ""
            values.append(value if equals else following)
    return values


def has_flag(args: Sequence[str], flag: str) -> bool:
    """True if `flag` is among `args`."""
    return bool(flag_values(args, flag))


def has_backend_setting(args: Sequence[str], setting: str) -> bool:
    """True if the Python backend's `setting` is among `args`."""
    values = flag_values(args, "--backend-config")
    return any(value.startswith(f"python,{setting}=") for value in values)


def install_shim(target: Path | None = None) -> Path:
    """Write `<environment>/bin/tritonserver`, which runs the wheel's server; its path."""
    path = target if target is not None else Path(sys.executable).parent / "tritonserver"
    if path.exists() and not is_shim(path):
        raise LaunchError(f"{path} is another tritonserver; it stays as it is")
    root = wheel_root()
    if root is None:
        raise LaunchError(f"the wheel's tritonserver is missing: {installing.with_extra('server')}")
    assemble_backends(root)
    temporary = path.with_name(f".tritonserver.{secrets.token_hex(4)}")
    # A shell line finds an interpreter whose path is too long, or has a space, for a #! line. -I
    # keeps the current folder off sys.path: in a model repository it would hold a folder named
    # openai_bls.
    temporary.write_text(
        f'#!/bin/sh\n# {SHIM_MARK}\nexec {shlex.quote(sys.executable)} -I -m openai_bls.launcher.shim "$@"\n'
    )
    temporary.chmod(0o755)
    temporary.replace(path)
    return path


def _prepend(folders: Sequence[str], path: str) -> str:
    rest = [part for part in path.split(os.pathsep) if part and part not in folders]
    return os.pathsep.join([*folders, *rest])
