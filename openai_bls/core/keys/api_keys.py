"""API keys: one from the environment, and named ones from a file that may change while the server runs.

A line of the file is `name: sha256:<64 hex digits>` or `name: <key>`, followed by limits of that name such as
`requests_per_minute=60` (`core.key_limits`); empty lines and those that begin with `#` are left out. Two lines with one
name are two keys of one client, such as an old and a new one, which have the same limits: one of the lines says them.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.errors import AuthenticationError
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits, parse_limits
from openai_bls.core.keys.watched_files import WatchedFiles
from openai_bls.core.settings import OpenAiBlsSettings

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1024 * 1024

_HASH_PREFIX = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[\x21-\x7e]+")


class ApiKeysError(ValueError):
    """A file of keys that cannot be used; the message is one sentence and holds no key."""


class _File(NamedTuple):
    """Content of the file of keys."""

    names: dict[str, str]
    """Digest of each key → its name."""
    limits: dict[str, KeyLimits]
    """Limits of the names that have some."""
    known: set[str]
    """Names of the keys."""


class ApiKeys:
    """Keys of which a request must have one, or none of which requests know.

    Not safe to use from several threads at once.

    Args:
        key: the key that has no name; empty is none.
        file: path of the file with named keys; empty is none.

    Raises:
        ApiKeysError: the file cannot be used.
    """

    def __init__(self, key: str = "", file: str = "") -> None:
        self._own = {_digest(key): ""} if key else {}
        self._file = Path(file) if file else None
        self._watched = WatchedFiles([self._file] if self._file else [])
        self._named = _read(self._file) if self._file else _File({}, {}, set())
        self._missing_since: dict[str, float] = {}
        """Names without a key that were asked for → `time.monotonic()` of the first time."""

    @classmethod
    def of(cls, settings: OpenAiBlsSettings) -> ApiKeys:
        """The keys that the settings name.

        Raises:
            ApiKeysError: the file cannot be used.
        """
        return cls(settings.api_key, settings.api_keys_file)

    @property
    def required(self) -> bool:
        """True if a request must have a key."""
        return bool(self._own or self._file)

    @property
    def several(self) -> bool:
        """True if there are keys of several names, the key without a name among them."""
        return len(self._named.known) + bool(self._own) > 1

    def check(self, given: str, remedy: str) -> str:
        """Name of the key `given`; empty if it has none, or no request must have a key.

        Args:
            given: key that the client sent; empty is none.
            remedy: end of the sentence for a client without the right key.

        Raises:
            AuthenticationError: it is none of the keys.
        """
        if not self.required:
            return ""
        self._follow_file()
        # What the time of the look-up tells of a digest says nothing about a key.
        digest = _digest(given)
        name = self._named.names.get(digest, self._own.get(digest))
        if name is None:
            raise AuthenticationError(f"Incorrect or missing API key: {remedy}")
        return name

    def missing_s(self, name: str) -> float | None:
        """Seconds since it was first asked for that no key has the name; None if one has, or none is required.

        A file that is being rewritten, or has not reached this server yet, lacks a name for a moment: what cannot be
        taken back waits until a name has been missing for some time.
        """
        if not self.required:
            return None
        self._follow_file()
        if name in self._named.known or name in self._own.values():
            self._missing_since.pop(name, None)
            return None
        now = time.monotonic()
        return now - self._missing_since.setdefault(name, now)

    def limits(self, name: str) -> KeyLimits:
        """Limits of the key `name`, as they are now; the key without a name has none."""
        return self._named.limits.get(name, NO_LIMITS)

    def is_admin(self, name: str) -> bool:
        """True if the key `name` may do what changes the server for all clients: the key without a name may.

        Of the named ones those with the role `admin` may, or all, if the file gives no key a role.
        """
        limits = self._named.limits
        return not name or self.limits(name).role == "admin" or all(one.role is None for one in limits.values())

    def _follow_file(self) -> None:
        """Read the file again if it has changed; a broken one changes nothing."""
        if self._file is None or not self._watched.changed():
            return
        try:
            self._named = _read(self._file)
        except ApiKeysError as error:
            logger.error("the API keys stay as they are: %s", error)
        else:
            logger.info("%d API keys read from %s", len(self._named.names), self._file)


NO_KEYS = ApiKeys()
"""Keys of a model that asks for none."""


def bearer(authorization: str) -> str:
    """The key in the value of a header `Authorization`; empty if it holds none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def new_key(name: str) -> tuple[str, str]:
    """A new random key, and its line for the file.

    Raises:
        ApiKeysError: no line can have this name.
    """
    if not _NAME.fullmatch(name):
        raise ApiKeysError(f"{name!r} is not a name of letters, digits, '_', '.', '@' and '-', at most 64")
    key = "sk-" + secrets.token_urlsafe(32)
    return key, f"{name}: {_HASH_PREFIX}{_digest(key)}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _read(file: Path) -> _File:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ApiKeysError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ApiKeysError(f"{file} is not UTF-8") from None
    if len(text) > MAX_FILE_BYTES:
        raise ApiKeysError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
    found = _File({}, {}, set())
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, _, rest = (part.strip() for part in entry.partition(":"))
        key, *words = rest.split() or [""]
        digest = key.removeprefix(_HASH_PREFIX).lower() if key.startswith(_HASH_PREFIX) else _digest(key)
        if not (_NAME.fullmatch(name) and _KEY.fullmatch(key) and _HASH.fullmatch(digest)):
            raise ApiKeysError(f"line {number} of {file} is not '<name>: sha256:<64 hex digits>' or '<name>: <key>'")
        if found.names.setdefault(digest, name) != name:
            raise ApiKeysError(f"line {number} of {file} gives '{name}' the key of '{found.names[digest]}'")
        found.known.add(name)
        try:
            limits = parse_limits(words)
        except ValueError as error:
            raise ApiKeysError(f"line {number} of {file}: {error}") from None
        if words and found.limits.setdefault(name, limits) != limits:
            raise ApiKeysError(f"line {number} of {file} gives '{name}' other limits than a line before")
    if not found.names:
        # Not "no key is required": it may be one that is just being written.
        raise ApiKeysError(f"{file} holds no key")
    return found
