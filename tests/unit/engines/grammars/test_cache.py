"""Compiled grammars that are kept: by key, within bytes and number, the fuller key's oldest goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars.cache import GrammarCache, Owned


def owned(owner: str, text: str) -> Owned:
    return Owned(owner, Grammar("regex", text))


def test_each_key_has_its_own() -> None:
    cache = GrammarCache()
    cache.put(owned("alice", "a"), "hers", 10)
    assert cache.get(owned("alice", "a")) == "hers"
    assert cache.get(owned("bob", "a")) is None
    cache.put(owned("bob", "a"), "his", 10)
    cache.forget(owned("alice", "a"))
    cache.forget(owned("alice", "a"))
    assert (cache.get(owned("alice", "a")), cache.get(owned("bob", "a"))) == (None, "his")


def test_the_text_counts() -> None:
    cache = GrammarCache()
    cache.put(owned("alice", "a" * 100), "", 10)
    assert cache.bytes == 110
    cache.forget(owned("alice", "a" * 100))
    assert cache.bytes == 0


def test_the_least_recently_used_goes() -> None:
    cache = GrammarCache(max_grammars=2)
    cache.put(owned("alice", "a"), 1, 0)
    cache.put(owned("alice", "b"), 2, 0)
    assert cache.get(owned("alice", "a")) == 1
    cache.put(owned("alice", "c"), 3, 0)
    assert [cache.get(owned("alice", text)) for text in "abc"] == [1, None, 3]


def test_a_key_that_fills_the_cache_takes_nothing_from_another() -> None:
    cache = GrammarCache(max_grammars=100, max_bytes=1000)
    for at in range(4):
        cache.put(owned("bob", str(at)), at, 99)
    for at in range(50):
        cache.put(owned("alice", str(at)), at, 200)
    assert [cache.get(owned("bob", str(at))) for at in range(4)] == [0, 1, 2, 3]
    assert cache.get(owned("alice", "49")) == 49


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 500)), max_size=60))
def test_bounds_and_shares_hold(puts: list[tuple[str, int, int]]) -> None:
    cache = GrammarCache(max_grammars=9, max_bytes=1000)
    last: dict[str, Owned] = {}
    for owner, text, size in puts:
        one = owned(owner, f"{text:02}")
        if cache.get(one) is None:
            cache.put(one, text, size)
        last[owner] = one
        assert len(cache) <= 9
        assert cache.bytes <= 1000
    # What a key alone would have room for in its share is still there.
    for owner, one in last.items():
        own = {text for other, text, _ in puts if other == owner}
        most = sum(max(size for other, at, size in puts if (other, at) == (owner, text)) + 2 for text in own)
        if len(own) <= 3 and most <= 1000 // 3:
            assert cache.get(one) is not None
