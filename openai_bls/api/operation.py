"""Operation: what the description of the API says of an endpoint, besides its paths and its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai_bls.api.common.unsupported import Unsupported
from openai_bls.core.errors import ApiError


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An endpoint's types, as the code reads and writes them."""

    summary: str
    """A few words."""
    body: Any = None
    """Type of the request body, or a tuple of types; None takes none."""
    body_type: str = "application/json"
    """Content type of the request body."""
    example: Mapping[str, Any] | None = None
    """A body for people to begin with; None is that of the smoke check."""
    answer: Any = None
    """Type of the whole answer, which is JSON unless it is bytes; None has no body."""
    events: Any = None
    """Type of the events of a streamed answer; None is never streamed."""
    query: Any = None
    """Struct whose fields are the query parameters."""
    error: Any = None
    """Type of an error's body; None is OpenAI's."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """Status of an error elsewhere → the one that it has here."""
    errors: frozenset[type[ApiError]] = frozenset()
    """Errors that other operations do not answer with."""
    unsupported: Mapping[Any, Mapping[str, Unsupported]] = field(default_factory=dict)
    """Struct → its fields that are refused except at some values."""
    optional_tags: frozenset[Any] = frozenset()
    """Structs of the body whose type may be left out."""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """Types of the request body."""
        return self.body if isinstance(self.body, tuple) else (self.body,) if self.body is not None else ()
