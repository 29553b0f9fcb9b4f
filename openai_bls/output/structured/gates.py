"""Facts that follow from one another, found in one pass: which rules and schemas come to an end.

Each gate is open once all, or any, of its parts are; what is then still shut can never open.
"""

from __future__ import annotations

from collections.abc import Iterable


class Gates:
    """A set of gates, known by their numbers. Costs are linear in the number of parts."""

    def __init__(self) -> None:
        # By gate: how many parts must still open, and which gates it is a part of.
        self._missing: list[int] = []
        self._users: list[list[int]] = []
        self.always = self.all_of(())
        """A gate that is open."""
        self.never = self.any_of(())
        """One that never is."""

    def all_of(self, parts: Iterable[int]) -> int:
        """A gate that opens when all of its parts are open; at once if there is none."""
        parts = list(parts)
        return self._gate(parts, len(parts))

    def any_of(self, parts: Iterable[int]) -> int:
        """A gate that opens when one of its parts is open; never if there is none."""
        return self._gate(parts, 1)

    def add(self, gate: int, part: int) -> None:
        """Give a gate of `any_of` another part."""
        self._users[part].append(gate)

    def settle(self) -> list[bool]:
        """For each gate, whether it opens."""
        missing = list(self._missing)
        ready = [gate for gate, count in enumerate(missing) if not count]
        while ready:
            for user in self._users[ready.pop()]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        # Of several parts that open a gate of `any_of`, all but the first take it below 0.
        return [count <= 0 for count in missing]

    def _gate(self, parts: Iterable[int], missing: int) -> int:
        gate = len(self._missing)
        self._missing.append(missing)
        self._users.append([])
        for part in parts:
            self._users[part].append(gate)
        return gate
