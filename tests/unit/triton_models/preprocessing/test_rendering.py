from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimitError
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder, load_tokenizer
from openai_bls.triton_models.preprocessing.rendering import problem, render, template_texts
from tests.unit.core_support import write_tokenizer

USER = {"role": "user", "content": "hé"}
ASSISTANT = {"role": "assistant", "content": "ho"}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    return load_tokenizer(tokenizer_dir)


def refused(tokenizer: Any, *messages: dict[str, Any], **fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        render(tokenizer, PromptRequest(messages=list(messages) or [USER], **fields))
    return caught.value


HARMONY = "<|start|>assistant<|channel|>analysis<|message|><|start|>assistant<|channel|>final<|message|>"
TURN = "<|im_start|>user\nhé<|im_end|>\n"
GENERATION = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("messages", "fields", "expected"),
    [
        ([USER], {}, TURN + GENERATION),
        ([USER], {"chat_template_kwargs": {"add_generation_prompt": False}}, TURN),
        ([USER], {"chat_template_kwargs": {"thinking": "hm"}}, TURN + "hm" + GENERATION),
        ([USER], {"tools": [{"name": "f"}]}, TURN + '[{"name": "f"}]' + GENERATION),
        ([USER], {"chat_template": "{{ documents }}", "documents": [{"a": 1}]}, "[{'a': 1}]"),
        (
            [USER, {**ASSISTANT, "reasoning_content": "hm"}],
            {"chat_template": HARMONY + "{{ messages[1].thinking }}"},
            HARMONY + "hm",
        ),
        (
            [USER, ASSISTANT],
            {"chat_template_kwargs": {"continue_final_message": True, "add_generation_prompt": False}},
            TURN + GENERATION + "ho",
        ),
    ],
)
def test_what_the_template_is_given(
    tokenizer: Any, messages: list[dict[str, Any]], fields: dict[str, Any], expected: str
) -> None:
    assert render(tokenizer, PromptRequest(messages=messages, **fields)) == expected


@pytest.mark.parametrize(
    ("name", "param"),
    [
        *((name, "chat_template_kwargs") for name in ("conversation", "tools", "chat_template", "tokenize", "padding")),
        *((name, "chat_template_kwargs") for name in ("return_dict", "return_tensors")),
        *((name, "messages") for name in ("messages", "self")),
    ],
)
def test_reserved_template_arguments(tokenizer: Any, name: str, param: str) -> None:
    assert refused(tokenizer, chat_template_kwargs={name: 1}).param == param


def test_what_the_template_refuses_is_told_in_its_words(tokenizer: Any) -> None:
    error = refused(tokenizer, {"role": "forbidden", "content": "x"})
    assert error.param == "messages"
    assert "no forbidden role" in error.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ 1 // 0 }}",
        "{{ messages | tojson(indent='x' * 2, no=1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% if %}",
    ],
)
def test_a_template_that_cannot_render_is_the_requests_error(tmp_path: Path, template: str) -> None:
    error = refused(load_tokenizer(write_tokenizer(tmp_path, template)))
    assert error.param == "messages"
    assert str(tmp_path) not in error.message


LOOPS = "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = b %}{% endfor %}{% endfor %}"
MACROS = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}"


@pytest.mark.parametrize("template", [LOOPS, MACROS, "{{ range(99999) | map('string') | list | length }}" * 999])
def test_a_template_that_takes_long_is_stopped(tokenizer: Any, template: str) -> None:
    with pytest.raises(CpuLimitError):
        render(tokenizer, PromptRequest(messages=[USER], chat_template=template), 0.05)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("a\n{% if %}", "The model's chat template cannot be parsed: Expected an expression, got 'end of statement "
         "block' (line 2)."),
        ("{{ raise_exception('No chats') }}", "The model's chat template refuses the messages: No chats."),
        ("{{ 1 // 0 }}", "The model's chat template cannot render the messages: integer division or modulo by zero."),
        (LOOPS, "The model's chat template takes more than 0.05 s to render that."),
        ("{{ messages[0].content }}", None),
        (None, None),
    ],
)  # fmt: skip
def test_a_template_that_renders_not_even_one_short_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None, told: str | None
) -> None:
    """It is the model's fault, and not that of the messages; other prompts and templates of a request work."""
    monkeypatch.setattr(rendering, "CPU_S", 0.05)
    monkeypatch.setattr(render, "__defaults__", (0.05,))
    folder = write_tokenizer(tmp_path, template)
    assert problem(load_tokenizer(folder)) == told
    encoder = PromptEncoder(folder)
    chat = encoder.prepare(PromptRequest(messages=[USER]))
    assert chat.unsupported == (told is not None)
    if told is not None:
        assert chat.error == (
            f"This model takes no conversations, not even one short message: use the completions endpoint. {told}"
        )
    assert encoder.prepare(PromptRequest(messages=[USER], chat_template="a")).error is None
    assert encoder.prepare(PromptRequest(prompts=["a"])).error is None
    encoder.close()


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("template", "kwargs", "told"),
    [
        ("a\n{{ messages[0].content + 1 }}", {}, "TypeError.*line 2 of the template"),
        ("\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}, "RecursionError.*line 2 of the template"),
        # Which of both it is goes by the release of transformers.
        ("{{ messages[0].content + 1 }}", {"x": deep(2000)}, "RecursionError|TypeError"),
    ],
)
def test_a_template_that_fails_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str, kwargs: dict[str, Any], told: str
) -> None:
    """Also by a recursion, whose traceback has hundreds of kilobytes."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template))
    caplog.clear()
    assert refused(tokenizer, chat_template_kwargs=kwargs).param == "messages"
    (line,) = caplog.messages
    assert re.search(told, line)
    assert caplog.records[0].exc_info is None
    assert "\n" not in line


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, None))
    assert template_texts(tokenizer) == []
    assert refused(tokenizer).param == "messages"


def test_templates_by_name(tokenizer: Any) -> None:
    assert len(template_texts(tokenizer)) == 1
    other = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template={"default": "a", "tool_use": "b"}
    )
    assert template_texts(other) == ["a", "b"]
    assert render(other, PromptRequest(messages=[USER])) == "a"


@pytest.mark.parametrize(
    ("template", "effort", "expected"),
    [
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking is defined }}", "medium", "True"),
        ("x", "none", "x"),
        ("x", "medium", "x"),
        ("x", "high", "x"),
        ("x", "very", None),
        ("{{ enable_thinking }}", "low", "True"),
        (HARMONY + "{{ reasoning_effort }}", "low", HARMONY + "low"),
        (HARMONY + "{{ reasoning_effort }}", "none", HARMONY + "low"),
    ],
)
def test_reasoning_effort(tokenizer: Any, template: str, effort: str, expected: str | None) -> None:
    fields: dict[str, Any] = {"chat_template": template, "reasoning_effort": effort}
    if expected is None:
        assert refused(tokenizer, **fields).param == "reasoning_effort"
    else:
        assert render(tokenizer, PromptRequest(messages=[USER], **fields)) == expected


# --- arguments of calls ---

CALLS = "{% for m in messages %}{% for call in m.tool_calls or [] %}%s;{% endfor %}{% endfor %}"
ARGUMENTS = "call.function.arguments"


def called(*arguments: Any) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": given}} for given in arguments]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("{{ %s | tojson }}", '{"a": "é"};"[1";'),
        ("{{ %s if %s is string else %s | tojson }}", '{"a": "é"};[1;'),
        ("{% for key, value in %s.items() %}{{ key }}={{ value }}{% endfor %}", "a=é;INVALID_JSON=[1;"),
        ("{% for key, value in %s | items %}{{ key }}={{ value }}{% endfor %}", "a=é;INVALID_JSON=[1;"),
        ("{{ '<' + %s + '>' }}", '<{"a": "é"}>;<[1>;'),
    ],
)
def test_arguments_come_in_the_form_that_a_template_takes(tokenizer: Any, how: str, expected: str) -> None:
    template = CALLS.replace("%s", how.replace("%s", ARGUMENTS))
    messages = [USER, called({"a": "é"}), called("[1"), USER]
    before = repr(messages)
    assert render(tokenizer, PromptRequest(messages=messages, chat_template=template)) == expected
    assert repr(messages) == before


def test_a_template_that_takes_no_form_fails_as_with_the_first(tokenizer: Any) -> None:
    template = CALLS.replace("%s", "{{ raise_exception('no ' ~ call.function.arguments) }}")
    assert "no [1" in refused(tokenizer, USER, called("[1"), chat_template=template).message


def test_all_forms_together_have_the_time_of_one(tokenizer: Any) -> None:
    slow = "{% for i in range(10 ** 5) %}{% endfor %}{{ raise_exception('no') }}"
    request = PromptRequest(messages=[USER, called("[1", {})], chat_template=CALLS.replace("%s", slow))
    with pytest.raises((InvalidRequestError, CpuLimitError)):
        render(tokenizer, request)
    endless = slow.replace("10 ** 5", "10 ** 5) %}{% for j in range(10 ** 5").replace(
        "{% endfor %}", "{% endfor %}" * 2
    )
    with pytest.raises(CpuLimitError):
        render(tokenizer, msgspec.structs.replace(request, chat_template=CALLS.replace("%s", endless)), 0.2)
