"""What versions can do, against the recorded tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging import version as packaging

from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.installed.versions import kv_cache_dtypes, plugin_refusal
from openai_bls_tensorrt_llm.recipe.quantizations import QUANTIZATIONS
from tests_tensorrt_llm.contracts import tables

SAMPLES = [
    "auto",
    "float16",
    "float32",
    "bfloat16",
    "int32",
    "fp8",
    "nvfp4",
    "int4",
    "enable",
    "disable",
    "64",
    "0",
    "-1",
    "",
]


def takes(field: dict[str, Any], text: str) -> bool:
    """Whether a recorded option takes a word of the command line, as trtllm-build has them."""
    if "values" not in field:
        return text.isdecimal() and int(text) > 0
    values = field["values"]
    if True in values:
        return text in ("enable", "disable")
    return (None if text == "disable" else text) in values


@pytest.mark.parametrize("version", tables.VERSIONS)
def test_plugin_options(version: str) -> None:
    """Every option of the recorded `PluginConfig` with every word, and no other option."""
    fields = tables.signatures(version)["classes"]["PluginConfig"]["fields"]
    installed = Version.parse(version)
    for name, field in fields.items():
        for text in SAMPLES:
            # Its dtype is the model's.
            expected = name != "dtype" and takes(field, text)
            assert (plugin_refusal(name, text, installed) is None) == expected, (name, text)
    for name in ("gemm", "use_custom_all_reduce", "model_fields"):
        assert name not in fields
        assert f"plugin option {name}" in str(plugin_refusal(name, "enable", installed))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gemm_plugins", "auto", "TensorRT-LLM 1.2.0 has no plugin option gemm_plugins: there is gemm_plugin"),
        ("use_custom_all_reduce", "disable", "chooses the all-reduce by itself: leave it out"),
        ("xyz", "disable", "has no plugin option xyz: see PluginConfig in its documentation"),
        ("gemm_swiglu_plugin", "auto", "plugin option gemm_swiglu_plugin is 'auto': give one of fp8, disable"),
        ("tokens_per_block", "many", "plugin option tokens_per_block is 'many': give a number of tokens"),
    ],
)
def test_sentences(name: str, text: str, says: str) -> None:
    assert says in str(plugin_refusal(name, text, Version(1, 2)))


def test_versions_that_are_not_recorded() -> None:
    """The worker, which sees the package, decides alone."""
    assert plugin_refusal("gemm", "auto", Version(1, 3)) is None
    assert plugin_refusal("gemm", "auto", Version(0, 19)) is None


@pytest.mark.parametrize("version", tables.VERSIONS)
def test_algorithms(version: str) -> None:
    """Whatever can be built has a name in each version."""
    members = set(tables.signatures(version)["classes"]["QuantAlgo"]["members"])
    assert {how.algorithm for how in QUANTIZATIONS.values()} <= members
    assert {name.upper() for name in kv_cache_dtypes("tensorrt", Version.parse(version)) if name != "auto"} <= members


TEXTS = st.builds(
    "{}.{}.{}{}".format,
    st.integers(0, 2),
    st.integers(0, 4),
    st.integers(0, 2),
    st.one_of(st.just(""), st.builds("rc{}{}".format, st.integers(1, 30), st.sampled_from(("", ".post1", "+local.3")))),
)


@given(TEXTS, TEXTS)
def test_versions_stand_in_the_order_of_releases(left: str, right: str) -> None:
    """As packaging has it, but for what comes after a candidate: that is the candidate's."""
    first, second = (packaging.Version(text.split(".post")[0].split("+")[0]) for text in (left, right))
    one, other = Version.parse(left), Version.parse(right)
    assert (one < other, one == other) == (first < second, first == second)
    assert str(one) == str(first)
    since = Version(one.major, one.minor, one.patch)
    assert since < one
    assert Version.parse(f"{one.major}.{one.minor}") == Version(one.major, one.minor)


def test_kv_caches() -> None:
    assert kv_cache_dtypes("tensorrt", Version(1, 2)) == ("auto", "fp8", "int8")
    assert kv_cache_dtypes("pytorch", Version(1, 2)) == ("auto", "fp8")
    assert kv_cache_dtypes("pytorch", Version(1, 3)) == ("auto", "fp8", "nvfp4")
