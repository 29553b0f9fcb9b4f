"""What the server gives, it takes: any answer, sent back in its API's own form, goes on with the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import PromptRequest
from openai_bls.output.detect import REASONINGS, TOOL_FORMATS, ModelFormats
from openai_bls.output.harmony import HARMONY_FORMAT, HARMONY_REASONING, MARKERS
from openai_bls.output.tool_parsers.formats import ToolFormat
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from openai_bls.triton_models.preprocessing.rendering import render
from tests.unit.api import own_answers
from tests.unit.api.own_answers import NAME, Answer, OwnAnswers, Text
from tests.unit.core_support import chat
from tests.unit.output.parsing import cut, cut_lengths

# In the styles of the families: what they do with the arguments of calls of earlier turns.
_CALL = "{%- for call in m.tool_calls or [] %}<call>{{ call.function.name }} "
_LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content or '' }}{{ m.content }}"
TEMPLATES = {
    name: f"{_LOOP}{_CALL}{arguments}{{% endfor %}}{{% endfor %}}[assistant]"
    for name, arguments in {
        "as JSON": "{{ call.function.arguments | tojson }}",
        "as text or JSON": (
            "{% set given = call.function.arguments %}{% if given is string %}{{ given }}{% else %}"
            "{{ given | tojson }}{% endif %}"
        ),
        "by member": (
            "{% for key, value in call.function.arguments | items %}<{{ key }}>"
            "{{ value if value is string else value | tojson }}{% endfor %}"
        ),
        "by method": "{% for key, value in call.function.arguments.items() %}<{{ key }}>{{ value }}{% endfor %}",
        "as joined text": "{{ '```json\\n' + call.function.arguments + '\\n```' }}",
    }.items()
}
# What is right, and all that models have been seen to do instead.
_FRAGMENTS = [
    '{"city": "Paris", "days": 2}',
    '{"city": "',
    '{"city": "a\nb\tc\x01"}',
    '{"city": "C:\\dir\\u12"}',
    '{"city": "\\ud83d", "b": "\\ude00"}',
    '{"city": "a "quote" b"}',
    '{"days": 1,}',
    '{"days": NaN}',
    f'{{"days": {2**64}}}',
    '{"days": 1e999}',
    "[1, 2]",
    "null",
    "7",
    '"text"',
    '{"INVALID_JSON": "x"}',
    '{"a":' * 150,
    "}}",
    "]",
    '"',
    "\\",
    "<",
    "\n",
    " ",
    "é 😀 中",
    "\ufffd\x00\u2028",
    NAME,
    f'{{"name": "{NAME}", "arguments": ',
    f'{{"name": "{NAME}", "parameters": "',
    f"[{NAME}(city='a', days=",
    "city='\\x",
    f"<function={NAME}>\n<parameter=city>\n",
    "<parameter=days>\nno number\n</parameter>",
    "</parameter>\n</function>",
    f'<invoke name="{NAME}">\n<parameter name="city">',
    "<arg_key>city</arg_key>\n<arg_value>",
    "I look.",
]


@cache
def _formats() -> dict[str, ModelFormats]:
    named = {name: ModelFormats(form, None, takes_tools=True) for name, form in TOOL_FORMATS.items()}
    thinking = {
        f"hermes, {name}": ModelFormats(TOOL_FORMATS["hermes"], reasoning, takes_tools=True)
        for name, reasoning in REASONINGS.items()
    }
    pairs = {"llama3_json, think": ("llama3_json", "think"), "glm, think": ("glm", "think")}
    thinking |= {
        name: ModelFormats(TOOL_FORMATS[form], REASONINGS[reasoning], takes_tools=True)
        for name, (form, reasoning) in pairs.items()
    }
    return {**named, **thinking, "harmony": ModelFormats(HARMONY_FORMAT, HARMONY_REASONING, True, harmony=True)}


def _pieces(formats: ModelFormats) -> list[str]:
    """Pieces of texts in the form of a model."""
    form = formats.tool_format
    assert form is not None
    begin = form.begin.replace("{name}", NAME)
    marks = [form.open, begin, form.open + begin, form.end, form.close, form.end + form.close, form.separator]
    marks += [form.trigger, *form.special, *form.excludes, _call(form, '{"days": 1}')]
    if formats.reasoning is not None:
        marks += [formats.reasoning.begin, formats.reasoning.end]
    if formats.harmony:
        marks += [
            *MARKERS,
            "<|channel|>analysis<|message|>",
            "<|channel|>final<|message|>",
            "<|end|><|start|>assistant",
        ]
    return sorted({mark for mark in marks if mark})


def _call(form: ToolFormat, arguments: str) -> str:
    call_id = "functions.f:0" if form.name == "kimi_k2" else "abcdefghi"
    between = call_id + form.call_id[1] if form.call_id is not None else ""
    return f"{form.open}{form.begin.replace('{name}', NAME)}{between}{arguments}{form.end}{form.close}"


@st.composite
def texts(draw: st.DrawFn, formats: ModelFormats) -> Text:
    """Any text of a model, cut anywhere."""
    marks, fragments = st.sampled_from(_pieces(formats)), st.sampled_from(_FRAGMENTS)
    text = "".join(draw(st.lists(marks | fragments | marks.map(lambda mark: mark[: len(mark) // 2 + 1]), max_size=8)))
    text = text[: draw(st.integers(0, len(text)) | st.just(len(text)))]
    reason = draw(st.sampled_from(own_answers.REASONS))
    return Text(cut(text, draw(cut_lengths)), reason, draw(st.booleans()))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    return load_tokenizer(tokenizer_dir)


@pytest.fixture(params=_formats(), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[tuple[ModelFormats, OwnAnswers]]:
    formats = _formats()[request.param]
    made = OwnAnswers(formats)
    yield formats, made
    made.close()


def check_rendered(tokenizer: Any, prompts: list[PromptRequest], said: str) -> None:
    """The prompts are taken by every template, none of which drops what was said."""
    for prompt in prompts:
        for template in TEMPLATES.values():
            text = render(tokenizer, msgspec.structs.replace(prompt, chat_template=template))
            assert said.strip() in text
            text.encode()


def is_same(formats: ModelFormats, whole: Answer, streamed: Answer) -> bool:
    """The two tell the same, unless reasoning that nothing opened was found in the whole: a stream has it as text."""
    if (whole.reason, whole.calls) != (streamed.reason, streamed.calls):
        return False
    if (whole.reasoning, whole.content) == (streamed.reasoning, streamed.content):
        return True
    thought = formats.reasoning is not None and whole.reasoning and not streamed.reasoning
    # In several parts it is joined by line breaks.
    kept = all(line in streamed.content for line in whole.reasoning.split("\n"))
    return bool(thought) and kept and streamed.content.endswith(whole.content)


any_text = settings(
    deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@any_text
@given(data=st.data())
def test_any_answer_of_chat_comes_back(
    server: tuple[ModelFormats, OwnAnswers], tokenizer: Any, data: st.DataObject
) -> None:
    formats, asked = server
    text = data.draw(texts(formats))
    whole, streamed = (own_answers.chat(asked, text, stream=stream) for stream in (False, True))
    assert is_same(formats, whole, streamed)
    assert not (text.forced and whole.content)
    for answer in (whole, streamed):
        check_rendered(tokenizer, own_answers.chat_again(asked, answer.said), whole.content)


@any_text
@given(data=st.data())
def test_any_answer_of_responses_comes_back(
    server: tuple[ModelFormats, OwnAnswers], tokenizer: Any, data: st.DataObject
) -> None:
    formats, asked = server
    text = data.draw(texts(formats))
    whole, streamed = (own_answers.responses(asked, text, stream=stream) for stream in (False, True))
    assert is_same(formats, whole, streamed)
    assert not (text.forced and whole.content)
    for answer in (whole, streamed):
        check_rendered(tokenizer, own_answers.responses_again(asked, answer), "")


@any_text
@given(data=st.data())
def test_any_answer_of_messages_comes_back(
    server: tuple[ModelFormats, OwnAnswers], tokenizer: Any, data: st.DataObject
) -> None:
    formats, asked = server
    text = data.draw(texts(formats))
    whole, streamed = (own_answers.messages(asked, text, stream=stream) for stream in (False, True))
    names = [whole._replace(calls=[(name, "") for name, _ in whole.calls]) for whole in (whole, streamed)]
    assert is_same(formats, *names)
    assert not (text.forced and whole.content)
    for answer in (whole, streamed):
        check_rendered(tokenizer, own_answers.messages_again(asked, answer.said), whole.content)


@pytest.mark.parametrize("arguments", ['{"city": "', "[1]", '{"a": "\\ud83d"}', '{"a": "x" "y"}'])
def test_what_was_written_as_arguments_reaches_the_template(tokenizer: Any, arguments: str) -> None:
    """The object or, where it is none, the text, in the form that the template takes."""
    call = {"type": "function", "function": {"name": NAME, "arguments": arguments}}
    prompt = chat(messages=[{"role": "assistant", "tool_calls": [call]}]).prompt
    assert prompt is not None
    found = {
        name: render(tokenizer, PromptRequest(prompt.messages, chat_template=template))
        for name, template in TEMPLATES.items()
    }
    if arguments.startswith('{"a": "\\ud'):
        assert '"a": "\ufffd"' in found["as JSON"]
        assert "<a>\ufffd" in found["by member"]
        assert '```json\n{"a": "\ufffd"}' in found["as joined text"]
    else:
        assert json.dumps(arguments, ensure_ascii=False) in found["as JSON"]
        assert arguments in found["as text or JSON"]
        assert f"<INVALID_JSON>{arguments}" in found["by member"]
        assert f"<INVALID_JSON>{arguments}" in found["by method"]
        assert f"```json\n{arguments}\n```" in found["as joined text"]
