"""Record of the null engine in engine.json."""

from __future__ import annotations

from openai_bls.core.manifest import EngineRecord, Milliseconds, NotNegative, Positive


class NullSettings(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Settings of the null engine: its output, delays and failures."""

    token_ids: tuple[NotNegative, ...] = ()
    """Emitted in a cycle by every request; empty is a default."""
    echo: bool = False
    """Emit the request's own prompt instead, then finish as if by an end token."""
    vocab_size: Positive = 4096
    """Used where there is no checkpoint to take it from."""
    step_delay_ms: Milliseconds = 0.0
    """Time from one step to the next; 0 is as fast as possible."""
    first_token_delay_ms: Milliseconds = 0.0
    """Time from submission to a request's first token."""
    fail_on_token_id: int = -1
    """A request whose prompt holds this id fails at its first step; -1 is off."""
    crash_at_step: NotNegative = 0
    """The engine dies at this step, counted from 1; 0 is off."""
