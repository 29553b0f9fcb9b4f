"""Flat names: what the model calls a tool of a namespace."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

MAX_LENGTH = 128
"""Characters of a function's name in a chat completion."""
_DIGEST_LENGTH = 12

Key = tuple[str | None, str]
"""Namespace and name of a tool; without a namespace the name is the flat name itself."""


def flat_names(keys: Iterable[Key]) -> dict[Key, str]:
    """The flat name of each tool, whatever their order: `namespace__name`.

    One that is too long, or is that of several tools, is cut and ends in a digest instead; tools without a namespace
    keep their names.
    """
    known = dict.fromkeys(keys)
    taken = Counter(joined(key) for key in known)
    return {key: _digested(key) if taken[joined(key)] > 1 else flat_name(key) for key in known}


def flat_name(key: Key) -> str:
    """The flat name of one tool that no other may be confused with."""
    name = joined(key)
    return name if len(name) <= MAX_LENGTH else _digested(key)


def joined(key: Key) -> str:
    """`namespace__name`."""
    namespace, name = key
    return name if namespace is None else f"{namespace}__{name}"


def _digested(key: Key) -> str:
    namespace, name = key
    if namespace is None:
        return name
    # The length says where the namespace ends. What a client has sent may hold half a surrogate pair.
    text = f"{len(namespace)}.{namespace}{name}".encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]
    return f"{joined(key)[: MAX_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"
