"""What a start of vLLM is given and what it says."""

from __future__ import annotations

import json
import logging.config
import os
from pathlib import Path
from typing import Any

import pytest

from openai_bls_vllm.loading import failure
from openai_bls_vllm.startup import environment, kv_cache, start_log

GIB = kv_cache.GIB

LOG = """
(EngineCore pid=9) ERROR 11-23 [core.py:1] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-23 [core.py:1] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-23 [core.py:1]     raise ValueError(
(EngineCore pid=9) ERROR 11-23 [core.py:1] ValueError: No available memory for the cache blocks. Try increasing it.
ERROR 11-23 [api.py:3] RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cause_is_the_last_exception_that_is_one() -> None:
    assert start_log.cause(LOG) == "No available memory for the cache blocks. Try increasing it."
    assert start_log.cause("ERROR something went wrong: no class") == ""
    assert start_log.cause("torch.OutOfMemoryError: CUDA out of memory.") == "CUDA out of memory."


def test_memory_that_others_hold_is_asked_of_them_and_not_of_vllm() -> None:
    values = {"max_model_len": 8192, "max_num_seqs": 256}
    held = "Free memory on device cuda:0 (126/139 GiB) on startup is less than desired (0.92)."
    for said, remedy in (
        (held, "lower gpu_memory_utilization"),
        (start_log.cause(LOG), "raise gpu_memory_utilization"),
    ):
        told = failure(RuntimeError("Engine core initialization failed."), said, values, on_cpu=False)
        assert remedy in told


def configuration(path: str) -> dict[str, Any]:
    """The configuration of an installed vLLM's log, which is all that the log of a start asks for."""
    assert path == "vllm.logger.DEFAULT_LOGGING_CONFIG"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"vllm": {"class": "logging.NullHandler"}},
        "loggers": {"vllm": {"handlers": ["vllm"], "propagate": False}},
    }


def test_an_error_after_the_start_finds_the_log_that_the_start_has_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VLLM_LOGGING_CONFIG_PATH", raising=False)
    logger = logging.getLogger("vllm")
    try:
        with start_log.StartLog(configuration) as log:
            # As a process of vLLM does it when it begins.
            logging.config.dictConfig(json.loads(Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).read_bytes()))
            assert log.cause() == ""
        logger.error("ValueError: long after the start")
        assert "VLLM_LOGGING_CONFIG_PATH" not in os.environ
        assert "Logging error" not in capsys.readouterr().err
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True


def test_what_pydantic_wraps_is_told_in_one_short_line() -> None:
    said = "1 validation error for ModelConfig\n  Value error, No such model. See: "
    wrapped = ValueError(f"{said}{'a, ' * 500} [type=value_error, input_value=1]\n  For further information")
    found = start_log.sentence(wrapped)
    assert found.startswith("No such model. See: a, ")
    assert len(found) == 300
    assert start_log.sentence(ValueError("first\nsecond")) == "first"
    assert start_log.sentence(KeyError()) == "KeyError"


def test_the_operators_environment_stays_but_for_reports() -> None:
    environ = {"HF_HUB_OFFLINE": "0", "VLLM_NO_USAGE_STATS": "0"}
    environment.set_environment(environ)
    assert environ["HF_HUB_OFFLINE"] == "0"
    assert (environ["VLLM_NO_USAGE_STATS"], environ["DO_NOT_TRACK"]) == ("1", "1")
    assert environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    environment.count_nans((), environ)
    assert "VLLM_COMPUTE_NANS_IN_LOGITS" not in environ, "a version whose steps would wait for it"
    environment.count_nans({"VLLM_RAISE_ON_LOGIT_NANS": None}, environ)
    assert environ["VLLM_COMPUTE_NANS_IN_LOGITS"] == "1"


@pytest.mark.parametrize(
    ("per_token", "tokens", "available", "size"),
    [
        (1 << 10, 1 << 10, 100 * GIB, GIB),  # at least
        (1 << 20, 3 << 10, 100 * GIB, 4 * GIB),  # what is needed, in whole GiB
        (1 << 20, 1 << 20, 100 * GIB, 8 * GIB),  # at most
        (1 << 20, 1 << 20, 5 * GIB, 2 * GIB),  # of little memory a share
        (0, 1 << 20, 100 * GIB, 8 * GIB),  # unknown
    ],
)
def test_the_kv_cache_of_a_cpu(per_token: int, tokens: int, available: int, size: int) -> None:
    assert kv_cache.cpu_kv_cache_bytes(per_token, tokens, available) == size


def test_the_kv_cache_of_a_container_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share is of what the container may still take, not of the machine's memory."""
    monkeypatch.setattr(kv_cache, "available_bytes", lambda: 5 * GIB)
    assert kv_cache.cpu_kv_cache_bytes(1 << 20, 1 << 20) == 2 * GIB
