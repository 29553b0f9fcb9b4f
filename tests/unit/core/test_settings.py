from __future__ import annotations

import re
from typing import Any

import pytest

from openai_bls.core import guide_names
from openai_bls.core.settings import EngineSettings, NoSettings, OpenAiBlsSettings, SettingsError, load
from openai_bls.triton_models.tensors.models import MODELS


def test_the_committed_parameters_are_accepted_and_say_the_defaults() -> None:
    assert load(OpenAiBlsSettings, MODELS["openai_bls"].parameters, {}) == OpenAiBlsSettings()
    assert load(EngineSettings, MODELS["tensorrt_llm"].parameters, {}) == EngineSettings()


def test_text_becomes_the_declared_type() -> None:
    settings = load(
        OpenAiBlsSettings,
        {"http_port": "8123", "keep_alive_interval_s": "2.5", "model_aliases": " a, ,b ", "http_host": "0.0.0.0"},
        {},
    )
    assert (settings.http_port, settings.keep_alive_interval_s, settings.http_host) == (8123, 2.5, "0.0.0.0")
    assert settings.aliases == ("a", "b")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("0", False)])
def test_booleans(text: str, value: bool) -> None:
    assert load(EngineSettings, {"exclude_input_in_output": text}, {}).exclude_input_in_output is value


def test_the_environment_wins_and_other_variables_are_left_alone() -> None:
    environ = {"OPENAI_BLS_HTTP_PORT": "7", "OPENAI_BLS_SOMETHING": "x", "HTTP_PORT": "8"}
    assert load(OpenAiBlsSettings, {"http_port": "9"}, environ).http_port == 7


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("http_port", "abc", "http_port is 'abc'; it is a whole number from 0 to 65535"),
        ("max_choices", "0", "max_choices is '0'; it is a whole number from 1 on"),
        ("guard_timeout_s", "soon", "guard_timeout_s is 'soon'; it is a number above 0 to 3600"),
        ("http_ui", "perhaps", "http_ui is 'perhaps'; it is true or false"),
        ("request_log", "xml", "request_log is 'xml'; it is one of json, off, text"),
    ],
)
def test_a_bad_value_is_named_with_what_it_may_be(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(OpenAiBlsSettings, {name: value}, {})
    assert str(refused.value) == said
    variable = f"OPENAI_BLS_{name.upper()}"
    with pytest.raises(SettingsError, match=re.escape(f"{value!r} ({variable})")):
        load(OpenAiBlsSettings, {}, {variable: value})


def test_a_secret_comes_from_the_environment_alone() -> None:
    assert load(OpenAiBlsSettings, {}, {"OPENAI_BLS_API_KEY": "k"}).api_key == "k"
    with pytest.raises(SettingsError, match="api_key"):
        load(OpenAiBlsSettings, {"api_key": "k"}, {})


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(SettingsError, match=r"'http_prt'.*http_port") as info:
        load(OpenAiBlsSettings, {"http_prt": "1"}, {})
    assert "api_key," not in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(("text", "windows"), [("", ()), ("4096", (4096,)), ("4096,512, 32000", (4096, 512, 32000))])
def test_attention_windows(text: str, windows: tuple[int, ...]) -> None:
    found = load(EngineSettings, {"max_attention_window_size": text}, {})
    assert (found.max_attention_window_size, found.attention_windows) == (text, windows)


def test_the_backends_own_parameters_are_no_settings() -> None:
    assert load(OpenAiBlsSettings, {"EXECUTION_ENV_PATH": "x", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}, {}) == (
        OpenAiBlsSettings()
    )


BAD: dict[type[OpenAiBlsSettings | EngineSettings], dict[str, list[str]]] = {
    OpenAiBlsSettings: {
        "http_port": ["-1", "65536", "http", ""],
        "max_concurrent_requests": ["0"],
        "max_request_bytes": ["1.5"],
        "max_choices": ["many"],
        "sender_threads": ["-3"],
        "keep_alive_interval_s": ["0"],
        "guard_before": ["openai_bls", "my guard"],
        "guard_after": ["openai_bls", "../guard"],
        "guard_timeout_s": ["0", "soon"],
        "guard_on_failure": ["ignore"],
    },
    EngineSettings: {
        "max_attention_window_size": ["10,x", "0", "10,,20", "10,", "-1", "1.5", "10\n20"],
        # TensorRT-LLM's executor: freeGpuMemoryFraction < 1 (cpp/tensorrt_llm/executor/kvCacheConfig.cpp, 0.20 to 1.2).
        "kv_cache_free_gpu_mem_fraction": ["1.0"],
    },
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, names in BAD.items() for name, values in names.items() for value in values],
)
def test_a_bad_value_is_refused_by_name(kind: Any, name: str, value: str) -> None:
    for parameters, environ in (({name: value}, {}), ({}, {"OPENAI_BLS_" + name.upper(): value})):
        with pytest.raises(SettingsError, match=name):
            load(kind, parameters, environ)


@pytest.mark.parametrize("name", guide_names.SETTINGS)
def test_parameters_of_guides(name: str) -> None:
    """Each is refused with what stands for it here."""
    with pytest.raises(SettingsError, match=re.escape(f"{name!r} in config.pbtxt: ")):
        load(EngineSettings, {name: "1"}, {})


def test_a_model_without_settings_takes_what_the_backend_reads_alone() -> None:
    load(NoSettings, {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}, {})
    with pytest.raises(SettingsError, match=r"'colour' .*none"):
        load(NoSettings, {"colour": "red"}, {})
