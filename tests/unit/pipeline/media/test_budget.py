"""Budget of images: what one of several keys holds leaves room for another's."""

from __future__ import annotations

import pytest

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.media.budget import MediaBudget


def test_a_key_s_images_leave_room_for_another_s() -> None:
    budget = MediaBudget(1000, lambda: True)
    leases = [budget.lease("alice") for _ in range(3)]
    leases[0].take(300)
    leases[1].take(200)
    with pytest.raises(OverloadedError):
        leases[2].take(1)
    with budget.lease("bob") as his:
        his.take(250)
        his.give_back(50)
        assert (budget.held, his.held) == (700, 200)
    leases[0].end()
    leases[2].take(300)
    for lease in leases:
        lease.end()
        lease.end()
    assert budget.held == 0


def test_without_several_keys_one_has_all() -> None:
    budget = MediaBudget(1000)
    with budget.lease() as lease:
        lease.take(1000)
        with pytest.raises(OverloadedError):
            lease.take(1)
