"""Address of an engine's process: `unix:/path`, or `unix:@name` (abstract)."""

from __future__ import annotations

from typing import NamedTuple

from openai_bls.core.manifest import EngineLoadError

_UNIX = "unix:"
# `sun_path` has 108 bytes, the last of which is zero.
_LONGEST_PATH = 107


class EngineAddress(NamedTuple):
    """Address of an engine's process."""

    path: str
    """Path of a Unix socket; one that begins with `@` is abstract and has no file."""

    def __str__(self) -> str:
        return f"{_UNIX}{self.path}"

    @property
    def socket_name(self) -> str:
        """Name of the Unix socket, as `bind` and `connect` take it."""
        return f"\0{self.path[1:]}" if self.path.startswith("@") else self.path


def parse(text: str) -> EngineAddress:
    """The address that `text` names.

    Raises:
        EngineLoadError: `text` names none.
    """
    path = text.removeprefix(_UNIX)
    if path == text or not path.startswith(("/", "@")) or len(path) < 2 or "\0" in path:
        raise EngineLoadError(f"{text!r} is no address of an engine's process: unix:/path is needed, an absolute path")
    if len(path.encode(errors="surrogateescape")) > _LONGEST_PATH:
        raise EngineLoadError(
            f"the path of the engine's socket has more than {_LONGEST_PATH} bytes, the most that there may be: {path}"
        )
    return EngineAddress(path)
