from __future__ import annotations

import pytest

from tests.touched import touched


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["openai_bls/core/settings.py"], ["tests/unit/core/test_settings.py", "tests/unit/docs"]),
        # No test of that name.
        (["openai_bls/api/http/connection/stream_connection.py"], ["tests/unit/api/http", "tests/unit/docs"]),
        # No folder of that name.
        (["openai_bls/api/server/endpoints.py"], ["tests/unit/api", "tests/unit/docs"]),
        (["tests/unit/core/test_settings.py"], ["tests/unit/core/test_settings.py"]),
        (
            ["engines/vllm/openai_bls_vllm/lora.py", "engines/vllm/openai_bls_vllm/recipe/environment.py"],
            ["engines/vllm/tests_vllm/engine/test_lora.py", "engines/vllm/tests_vllm/recipe/test_environment.py"],
        ),
        # No test of that name.
        (["engines/vllm/openai_bls_vllm/startup/load_steps.py"], ["engines/vllm/tests_vllm/engine/startup"]),
        (["engines/vllm/tests_vllm/engine/test_lora.py"], ["engines/vllm/tests_vllm/engine/test_lora.py"]),
        (["engines/vllm/tests_vllm/recipe/vllm_support.py"], ["engines/vllm/tests_vllm/recipe"]),
        (["engines/vllm/benchmarks_vllm/kv_offload.py"], ["engines/vllm/tests_vllm/benchmarks"]),
        # A folder holds its files.
        (["tests/unit/core/__init__.py", "tests/unit/core/test_settings.py"], ["tests/unit/core"]),
        (
            ["docs/api.md", "deploy/compose.md", "Dockerfile"],
            ["tests/unit/deploy", "tests/unit/docker", "tests/unit/docs"],
        ),
        # Neither there any more, nor of the unit tests.
        (["tests/unit/core/test_gone.py", "tests/triton/test_chat.py", "LICENSE"], []),
    ],
)
def test_tests_of_changed_files(changed: list[str], tests: list[str]) -> None:
    assert touched(changed) == tests
