"""Choice of a build's target, and the lock that keeps other builds out of it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai_bls.builder.targets.default import DefaultTarget
from openai_bls.builder.targets.named import NamedTarget
from openai_bls.core.manifest import BuildError
from openai_bls.transport.ipc.claims import ClaimedError, claim

BuildTarget = DefaultTarget | NamedTarget
"""Either target; until `commit` the last engine stays whole."""


def target_of(repository: Path, name: str) -> BuildTarget:
    """Target of the default engine (`name` is empty) or of a named one.

    Raises:
        BuildError: the name cannot be used, or this is not the model repository.
    """
    return NamedTarget(repository, name) if name else DefaultTarget(repository)


@contextmanager
def sole_build(target: BuildTarget) -> Iterator[None]:
    """Keep other builds of this machine out of `target`: each begins by removing what it takes for a killed one's.

    Raises:
        BuildError: another build is running there.
    """
    digest = hashlib.sha256(str(target.version_dir.resolve()).encode()).hexdigest()[:32]
    try:
        held = claim(f"openai_bls/build/{digest}", secrets.token_hex(4))
    except ClaimedError:
        raise BuildError(f"another build is at work in {target.version_dir}: wait until it ends") from None
    with held:
        yield
