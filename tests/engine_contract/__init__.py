"""Contract of engines as tests, and support for the tests of engines: published to `tests_<name>` of each."""

import pytest

pytest.register_assert_rewrite("tests.engine_contract.conformance")
