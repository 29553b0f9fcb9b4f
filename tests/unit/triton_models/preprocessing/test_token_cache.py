from __future__ import annotations

import gc
import re
import tracemalloc

import pytest

from openai_bls.triton_models.preprocessing.token_cache import TokenCache

BORDER = re.compile("<>")


class Counted:
    """An encoding with a token a character, that keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.asked.append(text)
        return [1000 + ord(char) for char in text]

    def taken(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


def parts(*numbers: int) -> str:
    return "".join(f"<>part {number:4}" for number in numbers)


def test_known_parts_are_not_encoded_again_wherever_they_are() -> None:
    encode = Counted()
    cache = TokenCache(encode, BORDER, 1 << 20, part_chars=1)
    for text, new in (
        (parts(1, 2, 3), [1, 2, 3]),
        (parts(1, 2, 3, 4, 5), [3, 4, 5]),
        # The last one is not kept, since it may go on.
        (parts(1, 9, 3, 4, 5), [9, 5]),
        (parts(4, 1, 9), [9]),
    ):
        assert cache.encode(text) == Counted()(text)
        assert encode.taken() == ["", *map(parts, new)][text.startswith("<>") :]


def test_the_least_recently_used_parts_go_first() -> None:
    encode = Counted()
    room = TokenCache(encode, BORDER, 1 << 20, part_chars=1)
    room.encode(parts(1, 2, 3, 0))
    cache = TokenCache(encode, BORDER, room.size_bytes, part_chars=1)
    cache.encode(parts(1, 2, 3, 0))
    assert cache.size_bytes == room.size_bytes
    cache.encode(parts(1, 3, 4, 0))
    assert cache.size_bytes == room.size_bytes
    encode.taken()
    cache.encode(parts(1, 3, 4, 2, 0))
    assert encode.taken() == [parts(2), parts(0)]


@pytest.mark.parametrize("letter", ["x", "é", "你", "🙂"])
def test_memory_is_bounded(letter: str) -> None:
    """As the interpreter counts it, with everything around the tokens."""
    limit = 300_000
    cache = TokenCache(lambda text: [1000 + ord(char) for char in text], BORDER, limit)
    tracemalloc.start()
    try:
        for at in range(20):
            cache.encode(f"<>{at}{letter * 2000}" * 4)
            assert cache.size_bytes <= limit
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * limit < cache.size_bytes
    assert used <= limit * 1.05


def test_a_part_that_is_larger_than_the_cache_drops_nothing() -> None:
    encode = Counted()
    cache = TokenCache(encode, BORDER, 3000, part_chars=1)
    cache.encode(parts(1, 2))
    before = cache.size_bytes
    long = "<>" + "x" * 5000
    assert cache.encode(long + parts(2)) == Counted()(long + parts(2))
    assert 0 < before == cache.size_bytes
