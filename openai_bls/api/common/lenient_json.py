"""JSON text that is nearly right: half a surrogate pair, which clients and models write, and arguments of models.

Escapes are looked at in a text without escaped backslashes, so that each backslash left begins an escape. Everything
here takes time linear in the text, in C.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Stands for an escaped backslash; it cannot stand in JSON text.
_NUL = b"\0"
# Most surrogates, in escapes, of a text that is mended: a quarter of a second.
_MOST_SURROGATES = 1 << 20
_HEX = rb"[0-9a-fA-F]"
_HIGH, _LOW = rb"[89abAB]" + _HEX * 2, rb"[c-fC-F]" + _HEX * 2
# A high one that no low one follows, or a low one that no high one precedes. The first two characters come first, so
# that the search has a fixed text to look for.
_HALF_PAIR = re.compile(
    rb"\\u[dD](?:" + _HIGH + rb"(?!\\u[dD]" + _LOW + rb")|(?<!\\u[dD]" + _HIGH + rb"\\u[dD])" + _LOW + rb")"
)
_BAD_ESCAPE = re.compile(rb'\\(?!["/bfnrt]|u' + _HEX * 4 + rb")")


def whole_characters(text: bytes) -> bytes:
    """JSON text with the escape of each half of a surrogate pair replaced by that of U+FFFD."""
    if not 0 < text.count(rb"\ud") + text.count(rb"\uD") <= _MOST_SURROGATES or _NUL in text:
        return text
    mended = _HALF_PAIR.sub(rb"\\ufffd", text.replace(rb"\\", _NUL))
    return mended.replace(_NUL, rb"\\")


def lenient_value(text: str) -> Any:
    """The value of JSON text, in which strings may have control characters as they are, and backslashes that begin no
    escape; half a surrogate pair is U+FFFD.

    Raises:
        ValueError: it is not JSON even so.
        RecursionError: it is nested too deeply.
    """
    # A half that is no escape but a character is one as well.
    encoded = whole_characters(text.encode(errors="replace"))
    try:
        return json.loads(encoded, strict=False)
    except ValueError:
        if b"\\" not in encoded or _NUL in encoded:
            raise
    escaped = _BAD_ESCAPE.sub(rb"\\\\", encoded.replace(rb"\\", _NUL)).replace(_NUL, rb"\\")
    return json.loads(escaped, strict=False)
