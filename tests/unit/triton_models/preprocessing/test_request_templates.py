"""Chat templates of requests: rendered as those of the model are, in processes that end what takes too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.transport.ipc.prompts import SlowPromptError
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder, load_tokenizer
from openai_bls.triton_models.preprocessing.request_templates import RequestTemplates

USER = {"role": "user", "content": "hé"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def chat(template: str, *messages: dict[str, Any], **fields: Any) -> PromptRequest:
    return PromptRequest(messages=list(messages) or [USER], chat_template=template, **fields)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    return load_tokenizer(tokenizer_dir)


@pytest.fixture(scope="module")
def templates(tokenizer: Any) -> Iterator[RequestTemplates]:
    made = RequestTemplates(dict(tokenizer.special_tokens_map), lambda: 1 << 20)
    yield made
    made.close()


@pytest.mark.parametrize(
    "request_",
    [
        chat("{{ messages[0].content }}"),
        chat("{{ bos_token }}{{ eos_token }}{{ messages | tojson(indent=2) }}{{ tools }}", tools=[{"name": "f"}]),
        chat("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endfor %}", USER,
             ASSISTANT),
        chat("{{ documents }}{{ x }}", documents=[{"a": 1}], chat_template_kwargs={"x": [1, {"y": None}]}),
        chat("{{ '{' ~ strftime_now('%Y') ~ '}' }}{% generation %}a{% endgeneration %}"),
        chat("{{ enable_thinking }}", reasoning_effort="none"),
        chat("<|start|>assistant<|channel|>{{ messages[1].thinking }}", USER, {**ASSISTANT, "reasoning_content": "hm"}),
    ],
)  # fmt: skip
def test_renders_as_preprocessing_does(templates: RequestTemplates, tokenizer: Any, request_: PromptRequest) -> None:
    assert templates.render(request_) == rendering.render(tokenizer, request_)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ 1 // 0 }}", "{{ ''.__class__.__mro__ }}", "{{ messages[7].a.b }}", "{{ '\\ud83d' }}"]
)
def test_a_template_that_fails_is_the_request_s_fault(templates: RequestTemplates, template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        templates.render(chat(template))
    assert caught.value.param == "chat_template"


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = b %}{% endfor %}{% endfor %}"
SORT = "{% set ns = namespace(l=range(99999) | list) %}{{ ((ns.l * 999) | sort) | length }}"
IN_C = "{{ (range(99999) | list * 40) | sum }}" * 999
BOMB = "{{ 'a' * 10**9 }}"
LISTS = "{% set ns = namespace(l=[0]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}"
STRINGS = "{% set ns = namespace(s='abc') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
LARGE = "{{ 'a' * 10**7 }}"
FORMAT = "{{ '%0999999999d' % 1 }}"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (ENDLESS, "chat_template_timeout"),
        (IN_C, "chat_template_timeout"),
        (BOMB, "chat_template_too_large"),
        (SORT, "chat_template_too_large"),
        (LISTS, "chat_template_too_large"),
        (STRINGS, "chat_template_too_large"),
        (FORMAT, "chat_template_too_large"),
        (LARGE, "string_above_max_length"),
    ],
)
def test_a_program_that_takes_too_much_is_ended(templates: RequestTemplates, template: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        templates.render(chat(template))
    assert (caught.value.param, caught.value.code) == ("chat_template", code)
    assert templates.render(chat("{{ messages[0].content }}")) == "hé"


def test_only_the_checkpoint_s_templates_are_rendered_in_preprocessing(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PromptEncoder(tokenizer_dir)
    rendered: list[str | None] = []

    def render(self: RequestTemplates, request: PromptRequest) -> str:
        rendered.append(request.chat_template)
        return "abc"

    monkeypatch.setattr(RequestTemplates, "render", render)
    own = PromptRequest(messages=[USER])
    (text,) = encoder._trusted
    for request in (own, chat(text)):
        assert encoder.prepare(request) == encoder.prepare_quickly(request)
    assert rendered == []
    # Others wait for the thread that prepares quickly.
    with pytest.raises(SlowPromptError):
        encoder.prepare_quickly(chat(text + " "))
    assert encoder.prepare(chat(text + " ")).prompt_token_ids == [encoder.encode("abc", add_special_tokens=False)]
    assert rendered == [text + " "]


def test_the_processes_have_no_secrets(templates: RequestTemplates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BLS_SECRET", "x")
    made = RequestTemplates({})
    try:
        assert made.render(chat("a")) == "a"
        (pid,) = made._pool.pids
        assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
