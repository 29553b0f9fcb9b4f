"""The engine's load by the statistics of vLLM's scheduler."""

from __future__ import annotations

from openai_bls_vllm.requests.load import Load
from tests_vllm.engine.vllm_support import Drafts, Stats


def test_the_newest_statistics_count_and_drafts_add_up() -> None:
    load = Load()
    load.observe(Stats(5, 0.9, Drafts(8, 3)))
    load.observe(Stats(2, 0.5, Drafts(4, 4)))
    stats = load.stats(6, 8, failed=False)
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (4, 2, 0.5)
    assert (stats.draft_tokens, stats.accepted_draft_tokens) == (12, 7)


def test_without_requests_there_is_no_load() -> None:
    """vLLM's last statistics may be from before a cancellation."""
    load = Load()
    load.observe(Stats(3, 0.7))
    stats = load.stats(0, 8, failed=True)
    assert (stats.running, stats.waiting, stats.kv_cache_usage, stats.failed) == (0, 0, 0.0, True)


def test_requests_beyond_the_batch_wait_before_any_step() -> None:
    stats = Load().stats(10, 4, failed=False)
    assert (stats.running, stats.waiting) == (4, 6)
