"""Judgement of an attack: whether the quiet key got its share, and lost nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.torture.attacks.alice import Outcome
from tests.torture.attacks.bob import Look

MOST_LOOP_S = 0.5
"""CPU time of the event loop between a question of the quiet key that it answers by itself, and the answer."""
_OF_THE_LOOP = "health"
SHARE_S = 4.0
"""CPU time that the server may give to others while a request of the quiet key waits: what is in progress and cannot be
divided, on all cores."""
SHARE_TIMES = 6.0
"""The same in what the request takes on a quiet server: others take turns with each of its pieces."""


@dataclass
class Fought:
    """An attack, as it was seen."""

    name: str
    seed: str
    outcome: Outcome = field(default_factory=Outcome)
    looks: list[Look] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    """Models whose process has changed."""
    goes_on: str = ""
    """Work that does not end after the attacker has left."""

    def most_loop_s(self) -> float:
        """The most CPU time of the event loop in one look."""
        return max((look.loop_s for look in self.looks if look.name == _OF_THE_LOOP), default=0.0)

    def most_cpu_s(self, name: str, quiet: Mapping[str, float]) -> float:
        """The most CPU time that others got while the quiet key waited for one kind of answer.

        Its own further answers that came in this time are left out: there are many where the machine has little CPU
        time for all.

        Args:
            name: kind.
            quiet: what `quiet_costs` has found.
        """
        return max((self._others_s(look, quiet) for look in self.looks if look.name == name), default=0.0)

    def _others_s(self, look: Look, quiet: Mapping[str, float]) -> float:
        began = look.ended_s - look.wall_s
        meanwhile = [other for other in self.looks if other is not look and began < other.ended_s < look.ended_s]
        return look.cpu_s - sum(min(other.cpu_s, quiet.get(other.name, 0.0)) for other in meanwhile)


def quiet_costs(looks: Iterable[Look]) -> dict[str, float]:
    """Kind → CPU time of an answer on a server that nobody else asks."""
    costs: dict[str, list[float]] = {}
    for look in looks:
        costs.setdefault(look.name, []).append(look.cpu_s)
    return {name: statistics.median(found) for name, found in costs.items()}


def share_s(quiet: Mapping[str, float], name: str) -> float:
    """CPU time that an answer of one kind may take."""
    return SHARE_S + SHARE_TIMES * quiet.get(name, 0.0)


def wrongs(fought: Fought, quiet: Mapping[str, float]) -> list[str]:
    """Heads of what is wrong with the server under an attack, each once.

    Args:
        fought: the attack.
        quiet: what `quiet_costs` has found.
    """
    found = [f"bob's {look.name}: {look.wrong}" for look in fought.looks if look.wrong]
    if fought.most_loop_s() > MOST_LOOP_S:
        found.append("holds the event loop")
    names: Sequence[str] = sorted({look.name for look in fought.looks})
    # What never got an answer has been told already.
    found += [
        f"takes more than its share from bob's {n}" for n in names if fought.most_cpu_s(n, quiet) > share_s(quiet, n)
    ]
    found += [f"{model} was started again" for model in fought.restarted]
    found += [f"is told {wrong}" for wrong in fought.outcome.wrong]
    found += [f"goes on after its end: {fought.goes_on}"] if fought.goes_on else []
    return list(dict.fromkeys(found))
