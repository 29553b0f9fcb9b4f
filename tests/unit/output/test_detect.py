from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_bls.output.detect import REASONINGS, TOOL_FORMATS, ModelFormats, chat_template, detect
from openai_bls.output.reasoning_parser import ReasoningParser
from openai_bls.output.tool_parsers.formats import Sign
from openai_bls.output.tool_parsers.parser import ToolCallParser
from tests.unit.output.parsing import run

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

# What tells each model apart, from its chat template
TEMPLATES: dict[str, str] = {
    "Qwen2.5": (
        '{%- if tools %}{{- "# Tools <tools></tools>\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": '
        '<args-json-object>}\\n</tool_call>" }}{%- endif %}'
    ),
    "Qwen3": (
        '{%- if tools %}{{- \'<tool_call>\\n{"name": <function-name>, "arguments": <args>}\\n</tool_call>\' }}'
        "{%- endif %}{%- set content = content.split('</think>')[-1] %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    ),
    "Qwen3-Coder": (
        "{%- if tools is iterable and tools | length > 0 %}{{- '<tool_call>\\n<function=example>\\n<parameter=p>\\nv\\n"
        "</parameter>\\n</function>\\n</tool_call>' }}{{ tool_call.arguments }}{%- endif %}"
    ),
    "Llama-3.1": (
        "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{- '<|start_header_id|>' }}"
        '{{- \'{"name": function name, "parameters": dictionary of argument name and its value}\' }}'
        "{{- '<|python_tag|>' + tool_call.name }}{{- '\"parameters\": ' }}"
    ),
    "Mistral-7B-v0.3": '{%- if tools is not none %}{{- "[AVAILABLE_TOOLS] [" }}{%- endif %}{{- "[TOOL_CALLS] [" }}',
    "Mistral-Nemo": '{%- if tools is not none %}{{- "[AVAILABLE_TOOLS][" }}{%- endif %}{{- "[TOOL_CALLS][" }}',
    "Mistral-Small-3.2": (
        "{%- if tools is not none %}{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}{%- endif %}"
    ),
    "Magistral-1.2": (
        "{%- if tools %}{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}{%- endif %}"
        "{{- '[THINK]' + thinking + '[/THINK]' }}"
    ),
    "DeepSeek-R1": (
        "{%- for tool in message['tool_calls'] %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + "
        "'<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n'}}{%- endfor %}"
        "{{'<｜Assistant｜><think>\\n'}}{%- set content = content.split('</think>')[-1] %}"
    ),
    "DeepSeek-V3.1": (
        "{% if tools is defined and tools is not none %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + "
        "'<｜tool▁sep｜>' + arguments + '<｜tool▁call▁end｜>'}}{% endif %}{{'</think>'}}"
    ),
    "Seed-OSS": (
        "{%- set toolcall_begin_token = '<seed:tool_call>' -%}{%- set think_begin_token = '<seed:think>' -%}"
        "{%- for item in tools if item.type == \"function\" %}{{'<function=example>'}}{%- endfor %}"
    ),
    "GLM-4.6": (
        "{%- if tools -%}\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}"
        "</arg_value>\n...\n</tool_call>{%- endif -%}{{ '\\n<tool_call>' + tc.name }}{% set _args = tc.arguments %}"
        "{{ '\\n<think></think>' }}"
    ),
    "DeepSeek-V3.2": (
        '{%- set dsml_token = "｜DSML｜" -%}{%- if not tools -%}{%- endif -%}<{{ dsml_token }}function_calls>\n'
        '<{{ dsml_token }}invoke name="$FUNCTION_NAME">{%- set thinking_end_token = "</think>" -%}'
    ),
    "DeepSeek-V4": (
        "{%- set dsml_token = '｜DSML｜' -%}{%- set header = 'use a \"<' + dsml_token + 'tool_calls>\" block' -%}"
        "{%- if tools -%}{{- '<' + dsml_token + 'tool_calls>\\n' -}}{{- '<' + dsml_token + 'invoke name=\"' + name -}}"
        "{{- '\">' }}{%- endif -%}{{ '</think>' }}"
    ),
    "MiniMax-M3": (
        "{%- set ns_token               = ']<]minimax[>['                  -%}"
        "{%- set toolcall_begin_token   = ns_token ~ '<tool_call>'         -%}"
        "{%- set toolcall_end_token     = ns_token ~ '</tool_call>'        -%}"
        "{%- if tools -%}{{- toolcall_begin_token ~ toolcall_end_token ~ ' block' }}"
        "{{- ns_token + '<invoke name=\"' + tool_call.name + '\">' }}{{ tool_call.arguments }}{%- endif -%}"
    ),
    "Kimi-K2": (
        "{%- macro render_toolcalls(message) -%}<|tool_calls_section_begin|>{%- for tool_call in m.tool_calls -%}"
        "<|tool_call_begin|>{{ tool_call['id'] }}<|tool_call_argument_begin|>{%- endfor -%}{%- endmacro -%}"
        "{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}"
    ),
    "Hunyuan-A13B": (
        '{% if tools %}{% set content_tmp = \'<tool_calls>[{\\"name\\": \\"func_name1\\", \\"arguments\\": {}},...]'
        "</tool_calls>' %}{% endif %}{{- '<think>\\n\\n</think>\\n' }}"
    ),
    "Granite-3.3": (
        "{%- if tools and not available_tools -%}{%- set available_tools = tools -%}{%- endif -%}{%- set system = "
        '"respond only with <|tool_call|> followed by a JSON list of tools used." %}'
    ),
    "Granite-4.0": (
        '{%- if tools %}{{ \'For each call: <tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}'
        "\\n</tool_call>' }}{%- endif %}"
    ),
    "MiniMax-M1": (
        '{%- if tools is not none %}{{ \'<beginning_of_sentence>system tool_setting=tools\\n<tool_calls>\\n{"name": '
        '<tool-name>, "arguments": <args-json-object>}\\n...\\n</tool_calls><end_of_sentence>\\n\' -}}{%- endif %}'
    ),
    "MiniMax-M2": (
        "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}{%- if tools -%}{{- toolcall_begin_token }}\n"
        '<invoke name="tool-name-1">\n<parameter name="param-key-1">param-value-1</parameter>\n</invoke>{%- endif -%}'
        "{%- if '</think>' in content %}{%- endif %}"
    ),
    "Gemma-4": (
        "{%- if tools -%}{{- '<|tool_call>call:' + name + '{' -}}{{- '<|\"|>' + v + '<|\"|>' -}}{{- '}<tool_call|>' -}}"
        "{%- endif -%}"
    ),
    "FunctionGemma": (
        "{%- if tools -%}{{ '<start_function_call>call:' + name + '{' }}{{ '<escape>' + v + '<escape>' }}"
        "{{ '}<end_function_call>' }}{%- endif -%}"
    ),
    "LFM2": (
        '{%- if tools -%}{%- set ns.p = ns.p + "List of tools: <|tool_list_start|>[" -%}{%- endif -%}'
        "{{ '<|im_start|>' }}"
    ),
    "LFM2.5": (
        '{%- if tools -%}{{- "<|tool_call_start|>[" + (calls | join(", ")) + "]<|tool_call_end|>" -}}{%- endif -%}'
    ),
    "Phi-4-mini": (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' }}"
        "{% endfor %}"
    ),
    "Phi-4-mini of vLLM": (
        '{%- if tools %}a list as functools[{"name": [name], "arguments": [arguments as JSON]}, ...]{%- endif %}'
    ),
    "Nemotron-Nano-v2": (
        '{%- if tools -%}{{- \'<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}]</TOOLCALL>\' -}}'
        "{%- endif -%}"
    ),
    "Command-R7B": (
        "{% if tools %}write <|START_ACTION|> followed by a list, <|END_ACTION|>{% endif %}<|START_ACTION|>[\n"
        '    {"tool_call_id": "{{ i }}", "tool_name": "{{ name }}", "parameters": {{ a|tojson }}}\n]<|END_ACTION|>'
    ),
    "InternLM-2.5": (
        '{%- if tools is not none %}{{- "<|action_start|><|plugin|>\\n" }}{{- \'{"name": "\' + name }}{%- endif %}'
    ),
    "Granite-20B": (
        "{% if tools %}{{- '<function_call> ' + call|tojson }}{% endif %}{{- '<function_response> ' + content }}"
    ),
    "Apertus": (
        "{%- set tool_calls_token = '<|tools_prefix|>' -%}{%- set end_tool_calls_token = '<|tools_suffix|>' -%}"
        "{%- if tools -%}{{ tool_calls_token + '[' }}{{ ']' + end_tool_calls_token }}{%- endif -%}"
    ),
    "Apriel-1.6": (
        "{%- if tools %}{{ '\\n<tool_calls>[' }}{{ '{\"name\": \"' + name + '\", \"arguments\": ' + a|tojson }}"
        "{{ ']</tool_calls>' }}{%- endif %}"
    ),
    "Hy3": (
        "{%- set HYTK = ':opensource' %}{%- set toolcalls_begin_token = '<tool_calls{}>'.format(HYTK) %}"
        "{%- set toolsep_token = '<tool_sep{}>'.format(HYTK) %}{%- if tools %}{{ toolcalls_begin_token }}{%- endif %}"
    ),
    "Hy3-preview": "{% if tools %}<tool_calls>\n<tool_call>{name}<tool_sep>\n<arg_key>{key}</arg_key>{% endif %}",
    "MiniCPM5": (
        '{%- if tools %}{{- \'<function name="function-name"><param name="p">value</param></function>, or in CDATA\' }}'
        "{%- endif %}"
    ),
    "Llama-4-JSON": (
        "{%- if tools is not none %}{{- '<|header_start|>' }}{{- '{\"name\": \"' + name + '\", ' }}"
        "{{- '\"parameters\": ' }}{%- endif %}"
    ),
    "Llama-3.2-pythonic": (
        "{{- '<|start_header_id|>' }}{%- if tools is not none %}{{- 'Respond in the format [func_name1(params_name1="
        "params_value1, params_name2=params_value2...), func_name2(params)] ' }}{%- endif %}"
    ),
    # Forms that look like others and are not read
    "gpt-oss": "{%- if tools %}<|channel|>commentary{%- endif %}{{ '</think>' }}",
    "plain": "{% for message in messages %}{{ 'my tools: ' + message.content }} tools {% endfor %}",
    "members": "{{ message.tools }}{{ my_tools }}{{ message['tools'] }}{# {{ tools }} #}",
}
# Signs of thoughts, in templates as they are: their markers, and what else tells them
REASONING_TEMPLATES: dict[str, tuple[str | None, str]] = {
    "Gemma 4": ("gemma4", "{{- '<|channel>thought\n' + thinking_text + '\n<channel|>' -}}"),
    "Command R7B": ("cohere_command", "{% if not enable_thinking %}<|START_THINKING|><|END_THINKING|>{% endif %}"),
    "Cohere2 MoE": ("cohere_command", "<|START_THINKING|>{{ t }}<|END_THINKING|><|START_TEXT|>{{ c }}<|END_TEXT|>"),
    "Hy3": (
        "hy_v3",
        "{%- set HYTK = ':opensource' %}{%- set think_begin_token = '<think{}>'.format(HYTK) %}"
        "{%- set think_end_token = '</think{}>'.format(HYTK) %}",
    ),
    "Hy3 without a suffix": (
        "think",
        "{%- set HYTK = '' %}{%- set a = '<think{}>'.format(HYTK) %}{%- set b = '</think{}>'.format(HYTK) %}",
    ),
    "MiniMax M3": (
        "minimax_m3",
        "{%- set think_begin_token = '<mm:think>' -%}{%- set think_end_token = '</mm:think>' -%}"
        "<thinking_instructions></thinking_instructions>",
    ),
    "Kimi K3": (
        "kimi_k3",
        "{{- '<|open|>' + tag -}}{{- '<|sep|>' -}}{{- '<|close|>' + tag + '<|sep|>' -}}{{- open_tag('think') -}}",
    ),
    "Solar Open": (
        "solar_open",
        '{{- "<|begin|>assistant<|think|>" + message.reasoning + "<|end|>" }}'
        '{{- "<|begin|>assistant<|content|>" + message.content + "<|end|>" }}',
    ),
    "Muse": (
        "muse_glimmer",
        "{{- '<|start|>assistant to=self<|message|>' + message['reasoning_content'] + '<|eom|>' }}",
    ),
    "Apriel 1.6": ("apriel", "{{ message['reasoning_content'] + '\n[BEGIN FINAL RESPONSE]\n' }}"),
    "Apriel 1.5": ("apriel", "between <thinking> and </thinking> [BEGIN FINAL RESPONSE] ... [END FINAL RESPONSE]"),
    "Apertus": ("apertus", "{%- set inner_token = '<|inner_prefix|>' -%}{%- set outer_token = '<|inner_suffix|>' -%}"),
    "Granite 3.2": (
        "granite",
        "after 'Here is my thought process:' and write your response after 'Here is my response:' for each user query.",
    ),
    "Granite 3.3": ("ernie45", "between <think></think> and write your response between <response></response>"),
    # Results of tools in its prompts
    "MiniMax M2": ("think", "<minimax:tool_call> <response></response> <think> </think>"),
    # No form that is known
    "PLaMo 3": (None, "{{ '<|plamo:begin_think:plamo|>' }}"),
    "a switch": (None, "{% if enable_thinking %}Think.{% endif %}"),
    "a field": (None, "{{ message.reasoning_content }}"),
    "a field by its name": (None, "{{ message['thinking'] }}"),
}


@pytest.mark.parametrize("model", REASONING_TEMPLATES)
def test_the_template_tells_the_form_of_thoughts(model: str) -> None:
    name, template = REASONING_TEMPLATES[model]
    formats = detect(template)
    assert formats.reasoning == (REASONINGS[name] if name is not None else None)
    assert formats.unknown_reasoning is (name is None)
    # Who names a form, or none, knows.
    assert not detect(template, reasoning_parser="think").unknown_reasoning
    assert not detect(template, reasoning_parser="none").unknown_reasoning


# Tool format, reasoning, whether the template takes tools
TOLD: dict[str, tuple[str | None, str | None, bool]] = {
    "Qwen2.5": ("hermes", None, True),
    "Qwen3": ("hermes", "think", True),
    "Qwen3-Coder": ("qwen3_coder", None, True),
    "Llama-3.1": ("llama3_json", None, True),
    "Mistral-7B-v0.3": ("mistral", None, True),
    "Mistral-Nemo": ("mistral_tekken", None, True),
    "Mistral-Small-3.2": ("mistral_v11", None, True),
    "Magistral-1.2": ("mistral_v13", "mistral", True),
    "DeepSeek-R1": ("deepseek_v3", "think", False),
    "DeepSeek-V3.1": ("deepseek_v31", "think", True),
    "Seed-OSS": ("seed_oss", "seed_oss", True),
    "GLM-4.6": ("glm", "think", True),
    "DeepSeek-V3.2": ("deepseek_v32", "think", True),
    "DeepSeek-V4": ("deepseek_v4", "think", True),
    "MiniMax-M3": ("minimax_m3", None, True),
    "Kimi-K2": ("kimi_k2", None, True),
    "Hunyuan-A13B": ("hunyuan_a13b", "hunyuan_a13b", True),
    "Granite-3.3": ("granite", None, True),
    "Granite-4.0": ("hermes", None, True),
    "MiniMax-M1": ("minimax_m1", None, True),
    "MiniMax-M2": ("minimax_m2", "think", True),
    "Gemma-4": ("gemma4", None, True),
    "FunctionGemma": ("functiongemma", None, True),
    "LFM2": ("lfm2", None, True),
    "LFM2.5": ("lfm2", None, True),
    "Phi-4-mini": ("phi4_mini_json", None, False),
    "Phi-4-mini of vLLM": ("phi4_mini_json", None, True),
    "Nemotron-Nano-v2": ("nemotron_json", None, True),
    "Command-R7B": ("cohere_command", None, True),
    "InternLM-2.5": ("internlm", None, True),
    "Granite-20B": ("granite-20b-fc", None, True),
    "Apertus": ("apertus", None, True),
    "Apriel-1.6": ("hunyuan_a13b", None, True),
    "Hy3": ("hy_v3", None, True),
    "Hy3-preview": ("hy_v3_preview", None, True),
    "MiniCPM5": ("minicpm5", None, True),
    "Llama-4-JSON": ("llama3_json", None, True),
    "Llama-3.2-pythonic": ("pythonic", None, True),
    "gpt-oss": (None, None, True),
    "plain": (None, None, False),
    "members": (None, None, False),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_the_template_tells(model: str) -> None:
    tool_format, reasoning, takes_tools = TOLD[model]
    expected = ModelFormats(
        TOOL_FORMATS[tool_format] if tool_format else None,
        REASONINGS[reasoning] if reasoning else None,
        takes_tools,
        unknown_reasoning=model == "gpt-oss",
        unknown_calls=model == "gpt-oss",
    )
    assert detect(TEMPLATES[model]) == expected


SIGNS = [(name, sign) for name, form in TOOL_FORMATS.items() for sign in form.signs]
# What stands before a marker and makes it a part of another, as text and as a variable.
NAMESPACES = ("", "]<]x[>[", "<x|", "~", "#")


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize(("name", "sign"), SIGNS)
def test_a_marker_is_no_part_of_a_longer_one(name: str, sign: Sign, by_variable: bool, namespace: str) -> None:
    first, *others = (f'"{mark}"' if "'" in mark else f"'{mark}'" for mark in sign.has)
    led = f"ns + {first}" if by_variable else f"{first[0]}{namespace}{first[1:]}"
    parts = [f"{{%- set ns = '{namespace}' -%}}", *(f"{{{{- {part} }}}}" for part in (led, *others))]
    found = detect("\n".join(parts)).tool_format
    is_marked = sign.has[0][0] in "<["
    assert (found is not None and found.name == name) == (not namespace or not is_marked)


def test_names_come_first() -> None:
    template = TEMPLATES["Qwen3"]
    formats = detect(template, "llama3_json", "mistral")
    assert formats.tool_format is TOOL_FORMATS["llama3_json"]
    assert formats.reasoning is REASONINGS["mistral"]
    assert detect(template, "none", "none") == ModelFormats(takes_tools=True)
    assert detect(None, "hermes").tool_format is TOOL_FORMATS["hermes"]
    assert detect(None) == ModelFormats()
    with pytest.raises(ValueError, match=r"tool_call_parser is 'x'; .* auto, none, apertus, .*deepseek_v3, .*hermes"):
        detect(None, tool_call_parser="x")
    with pytest.raises(ValueError, match=r"reasoning_parser is 'x'; .* auto, none, apertus, .*harmony"):
        detect(None, reasoning_parser="x")


def test_parsers() -> None:
    neither, calls = detect(None), detect(None, "hermes")
    thinks, both = detect(None, "none", "think"), detect(TEMPLATES["Qwen3"])
    assert neither.parsers(tools=TOOLS, reasoning_open=False)() is None
    assert calls.parsers(tools=None, reasoning_open=False)() is None
    assert calls.parsers(tools=[], reasoning_open=False)() is None
    assert isinstance(calls.parsers(tools=TOOLS, reasoning_open=False)(), ToolCallParser)
    assert isinstance(thinks.parsers(tools=TOOLS, reasoning_open=False)(), ReasoningParser)
    text = f"a</think>\n\n{CALL}"
    parser = both.parsers(tools=TOOLS, reasoning_open=True)()
    assert parser is not None
    assert parser.reasoning_open
    assert run(parser, [text]) == [("reasoning", "a"), ("call", "f", "{}")]
    parser = both.parsers(tools=None, reasoning_open=True)()
    assert parser is not None
    assert run(parser, [text]) == [("reasoning", "a"), ("content", CALL)]


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_no_schema_is_needed(form: str) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "parameters": None}},
    ]
    parser = detect(None, form).parsers(tools=tools, reasoning_open=False)()
    assert parser is not None
    assert run(parser, ["Hello"]) == [("content", "Hello")]


class Counted(list[dict[str, Any]]):
    """Tools, and how often they were gone through."""

    rounds = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.rounds += 1
        return super().__iter__()


@pytest.mark.parametrize("form", [*TOOL_FORMATS, "harmony"])
def test_the_tools_of_a_request_are_read_once(form: str) -> None:
    """And not for each of 128 choices: there may be tens of thousands."""
    tools = Counted(TOOLS * 3)
    new = detect(None, form, "harmony" if form == "harmony" else "think").parsers(tools=tools, reasoning_open=False)
    read = tools.rounds
    first, second = new(), new()
    assert tools.rounds == read <= 1
    assert first is not None
    assert first is not second


def test_markers_that_stay() -> None:
    formats = detect(TEMPLATES["Magistral-1.2"])
    assert formats.kept_special(tools=False) == {"[THINK]", "[/THINK]"}
    assert formats.kept_special(tools=True) == {"[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}
    assert detect(None).kept_special(tools=True) == frozenset()
    assert "<｜tool▁sep｜>" in detect(None, "deepseek_v31").kept_special(tools=True)
    assert detect(None, "llama3_json").kept_special(tools=True) == {"<|python_tag|>"}


def test_mistrals_ids_are_nine_letters_and_digits() -> None:
    for form in ("mistral", "mistral_tekken", "mistral_v11", "mistral_v13"):
        ids = {TOOL_FORMATS[form].new_id() for _ in range(50)}
        assert len(ids) == 50
        assert all(len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in ids)


def test_template_of_a_folder(tmp_path: Path) -> None:
    assert chat_template(tmp_path) is None
    default, tool_use = {"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}
    for template, expected in ((None, None), ("你好", "你好"), ([default], "a"), ([default, tool_use], "b")):
        text = json.dumps({"chat_template": template, "x": 1})
        (tmp_path / "tokenizer_config.json").write_text(text, encoding="utf-8")
        assert chat_template(tmp_path) == expected
    (tmp_path / "chat_template.jinja").write_text("from a file", encoding="utf-8")
    assert chat_template(tmp_path) == "from a file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("for tools", encoding="utf-8")
    assert chat_template(tmp_path) == "for tools"


@pytest.mark.parametrize("content", ["{", '{"chat_template": 7}', '{"chat_template": [{"name": "x"}]}'])
def test_a_bad_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        chat_template(tmp_path)
