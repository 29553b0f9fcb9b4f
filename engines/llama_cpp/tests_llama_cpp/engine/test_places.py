"""Places in llama.cpp's memory: what a prompt takes over, and what is forgotten first."""

from __future__ import annotations

from openai_bls_llama_cpp.model import LlamaModel
from openai_bls_llama_cpp.places import Places, common_length


class FakeMemory(LlamaModel):
    """Memory that notes what is asked of it."""

    def __init__(self, *, can_share: bool = True) -> None:
        self.can_share = can_share
        self.shared: list[tuple[int, int, int]] = []
        self.swapped: list[tuple[int, int]] = []

    def cut(self, place: int, length: int) -> bool:
        return self.can_share or not length

    def share(self, source: int, target: int, length: int) -> None:
        self.shared.append((source, target, length))

    def swap(self, one: int, other: int) -> None:
        self.swapped.append((one, other))


TEXT = list(range(100, 300))


def ended(places: Places, token_ids: list[int]) -> int:
    """A place in which a sequence has run."""
    found = places.begin(token_ids)
    assert found is not None
    places.advance(found[0], token_ids[found[1] :])
    places.end(found[0])
    return found[0]


def test_a_prompt_goes_on_where_its_beginning_is() -> None:
    memory = FakeMemory()
    places = Places(memory, 2, sharing=True)
    first = ended(places, TEXT[:50])
    assert places.begin(TEXT) == (first, 50)
    assert places.tokens == 50
    # Of a running sequence, and of one that has another end, the beginning is shared.
    assert places.begin([*TEXT[:40], 1, 2]) == (1 - first, 40)
    assert memory.shared == [(first, 1 - first, 40)]
    assert places.begin(TEXT) is None


def test_the_last_token_is_always_computed() -> None:
    places = Places(FakeMemory(), 1, sharing=True)
    ended(places, TEXT[:50])
    assert places.begin(TEXT[:50]) == (0, 49)


def test_a_short_beginning_is_not_worth_it() -> None:
    memory = FakeMemory()
    places = Places(memory, 2, sharing=True)
    ended(places, TEXT[:50])
    assert places.begin([*TEXT[:9], *range(50)]) == (1, 0)
    assert not memory.shared


def test_a_state_that_cannot_be_cut_goes_on_or_begins_anew() -> None:
    places = Places(FakeMemory(can_share=False), 1, sharing=True)
    ended(places, TEXT[:50])
    ended(places, TEXT[:80])
    assert places.begin([*TEXT[:60], 1]) == (0, 0)


def test_eviction_begins_with_what_is_idle_for_longest() -> None:
    places = Places(FakeMemory(), 3, sharing=True)
    for start in (0, 60, 120):
        ended(places, TEXT[start : start + 50])
    assert places.evict()
    # The place that was emptied begins with what the second one holds, which may be asked for once more.
    assert places.begin(TEXT[60:110]) == (0, 49)
    assert not places.forget_all()
    assert not places.evict()
    places.end(0)
    assert places.forget_all()
    assert Places(FakeMemory(), 1, sharing=False).begin(TEXT) == (0, 0)


def running(places: Places, count: int) -> list[int]:
    """Keys of places with sequences that have nothing in common."""
    keys = []
    for start in range(count):
        found = places.begin(TEXT[start:])
        assert found is not None
        places.advance(found[0], TEXT[start : start + 100])
        keys.append(found[0])
    return keys


def test_the_sequence_that_has_to_move_least_closes_a_gap() -> None:
    memory = FakeMemory()
    places = Places(memory, 6, sharing=True)
    keys = running(places, 6)
    places.close_gap()
    assert not memory.swapped
    for ended_key in (keys[0], keys[3], keys[4]):
        places.end(ended_key)
    # 1, 2 and 5 are left: the last is the only one that has to move.
    for _ in range(3):
        places.close_gap()
    assert memory.swapped == [(5, 0)]
    assert [places.number(key) for key in keys] == [5, 1, 2, 3, 4, 0]
    # What had ended there is found in its new place.
    assert places.begin(TEXT[:60]) == (keys[0], 59)


def test_a_long_sequence_is_moved_only_if_the_gap_lasts() -> None:
    memory = FakeMemory()
    places = Places(memory, 3, sharing=False)
    keys = running(places, 3)
    for key in keys:
        places.advance(key, [1] * 10_000)
    for _ in range(3):
        places.end(keys[1])
        for _ in range(19):
            places.close_gap()
        assert places.begin(TEXT) == (keys[1], 0)
        places.close_gap()
    assert not memory.swapped
    places.end(keys[1])
    for _ in range(20):
        places.close_gap()
    assert len(memory.swapped) == 1


def test_common_length() -> None:
    assert common_length(TEXT, TEXT[:130]) == 130
    assert common_length(TEXT, [*TEXT[:129], 0]) == 129
    assert common_length([], TEXT) == 0
