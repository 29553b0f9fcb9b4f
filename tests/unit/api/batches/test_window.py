from __future__ import annotations

import math

from openai_bls.api.batches.window import Window
from tests.unit.core_support import until


async def test_a_window_shrinks_to_what_there_was_room_for_and_grows_again() -> None:
    seen: list[float] = []
    window = Window((0.0, 0.0), lambda: seen.append(window.most))
    assert math.isinf(window.most)
    for others in (5, 4, 3):
        window.refused(others)
    assert window.most == 3
    await until(lambda: math.isinf(window.most))
    assert seen == [3 * 2**times for times in range(1, 9)] + [math.inf]
    window.refused(0)
    assert window.most == 0
    # At first one, which is refused, too.
    await until(lambda: window.most == 1)
    window.refused(0)
    await until(lambda: window.most == 1)
    window.close()
    assert window.most == 1
