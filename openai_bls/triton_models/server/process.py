"""Command line and ports of the tritonserver around a model, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

_LISTEN = "0A"
_FALSE = ("false", "0")
_DEFAULT_PORTS = {"grpc": "8001", "http": "8000", "metrics": "8002"}
_EVERY_INTERFACE = ("0.0.0.0", "::", "[::]")
# The flag that puts interfaces behind a key, and what Triton has before the name of its header.
_RESTRICTIONS = {
    "http": ("--http-restricted-api", ""),
    "grpc": ("--grpc-restricted-protocol", "triton-grpc-protocol-"),
}


class NoGrpcError(Exception):
    """The server's gRPC front end cannot be used; the message is one sentence for the operator."""


def grpc_address(pid: int) -> str:
    """Host and port at which the gRPC front end of the tritonserver `pid` is reached from this machine.

    Raises:
        NoGrpcError: it has none, it wants TLS, or its command line does not tell.
    """
    options = command_line(pid)
    if options is None:
        raise NoGrpcError("the server is no tritonserver, so where its gRPC front end listens is not known")
    if options.get("--allow-grpc", "true").lower() in _FALSE:
        raise NoGrpcError("tritonserver runs with --allow-grpc=false")
    if options.get("--grpc-use-ssl", "false").lower() not in _FALSE:
        raise NoGrpcError("tritonserver's gRPC front end wants TLS (--grpc-use-ssl), which is not supported here")
    port = options.get("--grpc-port", "8001")
    if not port.isdigit():
        raise NoGrpcError(f"tritonserver's --grpc-port is {port!r}")
    host = options.get("--grpc-address", "0.0.0.0")
    if host in _EVERY_INTERFACE:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def http_address(pid: int) -> tuple[str, int] | None:
    """Host and port of the HTTP front end of the tritonserver `pid`; None if it has none, or does not tell."""
    options = command_line(pid)
    if options is None:
        return None
    port = options.get("--http-port", "8000")
    if options.get("--allow-http", "true").lower() in _FALSE or not port.isdigit():
        return None
    host = options.get("--http-address", "0.0.0.0")
    return ("127.0.0.1" if host == "0.0.0.0" else host), int(port)


def sockets(pid: int | str) -> dict[int, str]:
    """File descriptor of a process → inode, of those that are sockets; empty if the process cannot be looked into."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # It may be closed meanwhile, as that of this listing is.
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    found[int(entry.name)] = target
    return found


def command_line(pid: int) -> dict[str, str] | None:
    """The options of the tritonserver `pid` with their values; of one given twice the last. None if it is another
    program, or cannot be read."""
    options = _options(pid)
    return None if options is None else dict(options)


def control_headers(pid: int, front_end: Literal["http", "grpc"]) -> dict[str, str]:
    """Headers with which the tritonserver `pid` lists, loads and unloads models, where these are behind a key."""
    flag, prefix = _RESTRICTIONS[front_end]
    for name, value in _options(pid) or []:
        interfaces, _, pair = value.partition(":")
        if name == flag and "model-repository" in interfaces.split(","):
            header, _, key = pair.partition("=")
            return {prefix + header: key}
    return {}


def find_tritonserver(grpc_port: int) -> int | None:
    """Process id of a tritonserver in this network namespace whose gRPC front end has that port, or None."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        options = command_line(int(entry.name))
        if options is not None and options.get("--grpc-port", "8001") == str(grpc_port):
            # Other users' namespaces cannot be read: their ports may be these.
            with contextlib.suppress(OSError):
                if (entry / "ns/net").readlink() != Path("/proc/self/ns/net").readlink():
                    continue
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    # A stub that the server is starting has its command line, until it runs its own program.
    return next((pid for pid, parent in parents.items() if parent not in parents), None)


def _options(pid: int) -> list[tuple[str, str]] | None:
    """The options of the tritonserver `pid` in their order; None if it is another program, or cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    arguments = raw.decode(errors="replace").removesuffix("\0").split("\0")
    if "tritonserver" not in Path(arguments[0]).name:
        return None
    options = []
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            # A flag alone is true; what follows one may be its value.
            after = "".join(arguments[at + 1 : at + 2])
            options.append((name, value if equals else "true" if after.startswith("--") or not after else after))
    return options


def repositories(pid: int) -> list[Path]:
    """Model repositories on a disk of the tritonserver `pid`, by its command line; none if it does not tell."""
    found = [value for name, value in _options(pid) or [] if name in ("--model-repository", "--model-store")]
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return []
    # Those of object storage begin with a scheme, and are no folders.
    return [folder / value for value in found if "://" not in value]


def shows_metrics(pid: int) -> bool:
    """False if the tritonserver `pid` has been told to have no metrics port."""
    return (command_line(pid) or {}).get("--allow-metrics", "true").lower() not in _FALSE


def front_ends(pid: int) -> dict[str, int]:
    """Port of each front end that the command line of the tritonserver `pid` asks for; none if it does not tell."""
    options = command_line(pid)
    if options is None:
        return {}
    found = {
        name: options.get(f"--{name}-port", default)
        for name, default in _DEFAULT_PORTS.items()
        if options.get(f"--allow-{name}", "true").lower() not in _FALSE
    }
    return {name: int(port) for name, port in found.items() if port.isdigit()}


def listening_ports(pid: int) -> set[int]:
    """TCP ports that process `pid` listens on.

    A tritonserver begins to once it has been created in full, all models loaded: with gRPC, then HTTP and metrics.
    """
    inodes = {}
    for family in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{family}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    return {inodes[inode] for inode in sockets(pid).values() if inode in inodes}
