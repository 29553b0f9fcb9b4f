"""Address of an engine's process: `unix:/path`, `unix:@name` (abstract) or `tls://host:port`."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from openai_bls.core.manifest import EngineLoadError

_UNIX = "unix:"
_TLS = re.compile(r"^tls://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})$")
# `sun_path` has 108 bytes, the last of which is zero.
_LONGEST_PATH = 107
FORMS = "unix:/path or tls://host:port"


class EngineAddress(NamedTuple):
    """Address of an engine's process."""

    kind: Literal["unix", "tls"]
    path: str = ""
    """Path of a Unix socket; one that begins with `@` is abstract and has no file."""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"{_UNIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"

    @property
    def socket_name(self) -> str:
        """Name of the Unix socket, as `bind` and `connect` take it."""
        return f"\0{self.path[1:]}" if self.path.startswith("@") else self.path


def parse(text: str) -> EngineAddress:
    """The address that `text` names.

    Raises:
        EngineLoadError: `text` names none, or plain TCP.
    """
    if text.startswith(_UNIX):
        return _unix(text.removeprefix(_UNIX))
    if text.startswith(("tcp:", "http:", "https:")):
        raise EngineLoadError(
            f"{text!r} is no address of an engine's process: over a network it is tls://host:port, never plain TCP"
        )
    match = _TLS.match(text)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise EngineLoadError(f"{text!r} is no address of an engine's process: {FORMS} is needed")
    return EngineAddress("tls", host=match[1].strip("[]"), port=int(match[2]))


def _unix(path: str) -> EngineAddress:
    if not path.startswith(("/", "@")) or len(path) < 2 or "\0" in path:
        raise EngineLoadError(f"{_UNIX + path!r} is no address of an engine's process: an absolute path is needed")
    if len(path.encode(errors="surrogateescape")) > _LONGEST_PATH:
        raise EngineLoadError(
            f"the path of the engine's socket has more than {_LONGEST_PATH} bytes, the most that there may be: {path}"
        )
    return EngineAddress("unix", path=path)
