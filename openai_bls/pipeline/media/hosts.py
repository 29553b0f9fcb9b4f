"""Hosts that images may be fetched from, as the settings name them."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_PORTS = {"http": 80, "https": 443}


class Host(NamedTuple):
    """An entry of `image_url_hosts`: `example.com`, `*.example.com`, `*`, each also with `:port`."""

    name: str
    port: int | None
    """Port of the host; None is that of the URL's scheme."""

    @classmethod
    def of(cls, text: str) -> Host:
        """The entry that `text` is, which the settings have checked; an IPv6 address is in brackets."""
        name, bracket, rest = text.partition("]")
        if bracket:
            return cls(name[1:].lower(), int(rest[1:]) if rest else None)
        name, _, port = text.partition(":")
        return cls(name.lower(), int(port) if port else None)

    def allows(self, host: str, port: int, scheme: str) -> bool:
        """True if a URL may name `host`, in small letters, and `port`."""
        if port != (DEFAULT_PORTS[scheme] if self.port is None else self.port):
            return False
        if self.name == "*":
            return True
        return host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name


class Hosts:
    """The hosts of both settings.

    Args:
        public: hosts that must have public addresses.
        private: hosts whose addresses may be private ones.
    """

    def __init__(self, public: tuple[str, ...] = (), private: tuple[str, ...] = ()) -> None:
        self._public = [Host.of(text) for text in public]
        self._private = [Host.of(text) for text in private]

    def __bool__(self) -> bool:
        return bool(self._public or self._private)

    def allows(self, host: str, port: int, scheme: str) -> bool:
        """True if images may come from there."""
        return any(entry.allows(host, port, scheme) for entry in (*self._public, *self._private))

    def may_be_private(self, host: str, port: int, scheme: str) -> bool:
        """True if the host may have a private address."""
        return any(entry.allows(host, port, scheme) for entry in self._private)
