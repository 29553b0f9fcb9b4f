"""Chat templates that write an assistant's calls in each form as its models' own templates do, and little else."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from tests.unit.core_support import write_tokenizer

N = "{{ call.function.name }}"
A = "{{ call.function.arguments | tojson }}"
V = "{{ value if value is string else value | tojson }}"
OBJECT = f'{{"name": "{N}", "arguments": {A}}}'


def each(call: str, separator: str = "") -> str:
    """Every call of a message, with a text between two."""
    between = f"{{% if not loop.last %}}{separator}{{% endif %}}" if separator else ""
    return f"{{% for call in message.tool_calls %}}{call}{between}{{% endfor %}}"


def listed(begin: str, end: str, call: str = OBJECT, separator: str = ", ") -> str:
    return begin + each(call, separator) + end


def tagged(argument: str) -> str:
    """Every argument of a call."""
    return f"{{% for key, value in call.function.arguments.items() %}}{argument}{{% endfor %}}"


def template(calls: str, prompt: str = "") -> str:
    """A template that asks for the form with `prompt`, and has nothing before the text that the model writes."""
    return (
        "{% for message in messages %}{% if message.role == 'system' %}{% if tools %}" + prompt + "{% endif %}"
        "{% elif message.role == 'assistant' %}{{ message.content or '' }}" + calls + "{% endif %}{% endfor %}"
    )


def gemma(begin: str, quote: str, end: str) -> str:
    value = (
        "{% macro value(given) %}{% if given is string %}"
        + quote
        + "{{ given }}"
        + quote
        + "{% elif given is mapping %}"
        "{{ '{' }}{% for key, part in given.items() %}{{ key }}:{{ value(part) }}{{ '' if loop.last else ',' }}"
        "{% endfor %}{{ '}' }}{% elif given is iterable %}[{% for part in given %}{{ value(part) }}"
        "{{ '' if loop.last else ',' }}{% endfor %}]{% else %}{{ given | tojson }}{% endif %}{% endmacro %}"
    )
    call = f"{begin}call:{N}{{{{ value(call.function.arguments) }}}}{end}"
    return value + template(each(call))


PYTHON = f"{N}({{% for key, value in call.function.arguments.items() %}}{{{{ key }}}}={{{{ value | tojson }}}}"
PYTHON += "{{ '' if loop.last else ', ' }}{% endfor %})"
QWEN = f"<function={N}>{{{{ '\\n' }}}}" + tagged(f"<parameter={{{{ key }}}}>\n{V}\n</parameter>{{{{ '\\n' }}}}")
QWEN += "</function>"
GLM = f"<tool_call>{N}\n" + tagged(f"<arg_key>{{{{ key }}}}</arg_key>\n<arg_value>{V}</arg_value>{{{{ '\\n' }}}}")
HY = "<tool_calls@>\n" + each(
    f"<tool_call@>{N}<tool_sep@>\n"
    + tagged(f"<arg_key@>{{{{ key }}}}</arg_key@>\n<arg_value@>{V}</arg_value@>{{{{ '\\n' }}}}")
    + "</tool_call@>{{ '\n' }}"
)
HY += "</tool_calls@>"
INVOKE = (
    f'<invoke name="{N}">' + "{{ '\n' }}" + tagged(f'<parameter name="{{{{ key }}}}">{V}</parameter>' + "{{ '\n' }}")
)
DSML = (
    f'<｜DSML｜invoke name="{N}">'
    + "{{ '\n' }}"
    + tagged(
        '<｜DSML｜parameter name="{{ key }}" string="{{ (value is string) | tojson }}">' + V + "</｜DSML｜parameter>"
        "{{ '\n' }}"
    )
)
DSML += "</｜DSML｜invoke>{{ '\n' }}"
KIND = (
    "{{ 'boolean' if value is boolean else 'null' if value is none else 'number' if value is number else 'string' "
    "if value is string else 'object' if value is mapping else 'array' }}"
)
K3 = (
    f'<|open|>call tool="{N}" index="{{{{ loop.index }}}}"<|sep|>'
    + tagged(f'<|open|>argument key="{{{{ key }}}}" type="{KIND}"<|sep|>{V}<|close|>argument<|sep|>')
    + "<|close|>call<|sep|>"
)
NS = "]<]minimax[>["
M3 = (
    "{% macro value(given) %}{% if given is mapping %}{% for key, part in given.items() %}"
    + f"{NS}<{{{{ key }}}}>{{{{ value(part) }}}}{NS}</{{{{ key }}}}>"
    + "{% endfor %}{% elif given is iterable and given is not string %}{% for part in given %}"
    + f"{NS}<item>{{{{ value(part) }}}}{NS}</item>"
    + "{% endfor %}{% else %}{{ given if given is string else given | tojson }}{% endif %}{% endmacro %}"
)
DEEPSEEK = "<｜tool▁calls▁begin｜>"
END_DEEPSEEK = "<｜tool▁call▁end｜>"

TEMPLATES: dict[str, str] = {
    "hermes": template(each(f"<tool_call>\n{OBJECT}\n</tool_call>", "{{ '\n' }}")),
    "llama3_json": template(
        each(f'{{"name": "{N}", "parameters": {A}}}', "; "), prompt='<|python_tag|> {"name": x, "parameters": y}'
    ),
    "mistral": template(listed("[TOOL_CALLS] [", "]")),
    "mistral_tekken": template(listed("[TOOL_CALLS][", "]")),
    "mistral_v11": template(each(f"[TOOL_CALLS]{N}[CALL_ID]{{{{ call.id }}}}[ARGS]{A}")),
    "mistral_v13": template(each(f"[TOOL_CALLS]{N}[ARGS]{A}")),
    "deepseek_v3": template(
        DEEPSEEK
        + each(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{N}\n```json\n{A}\n```{END_DEEPSEEK}", "{{ '\n' }}")
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": template(
        DEEPSEEK + each(f"<｜tool▁call▁begin｜>{N}<｜tool▁sep｜>{A}{END_DEEPSEEK}") + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": template("<｜DSML｜function_calls>\n" + each(DSML) + "</｜DSML｜function_calls>"),
    "deepseek_v4": template("<｜DSML｜tool_calls>\n" + each(DSML) + "</｜DSML｜tool_calls>"),
    "kimi_k2": template(
        "<|tool_calls_section_begin|>"
        + each(
            f"<|tool_call_begin|>functions.{N}:{{{{ loop.index0 }}}}<|tool_call_argument_begin|>{A}<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>"
    ),
    "kimi_k3": template("<|close|>response<|sep|><|open|>tools<|sep|>" + each(K3) + "<|close|>tools<|sep|>"),
    "gemma4": gemma("<|tool_call>", '<|"|>', "<tool_call|>"),
    "functiongemma": gemma("<start_function_call>", "<escape>", "<end_function_call>"),
    "cohere_command": template(
        listed(
            "<|START_ACTION|>[{{ '\n    ' }}",
            "{{ '\n' }}]<|END_ACTION|>",
            f'{{"tool_call_id": "{{{{ loop.index0 }}}}", "tool_name": "{N}", "parameters": {A}}}',
            "{{ ',\n    ' }}",
        )
    ),
    "apertus": template(listed("<|tools_prefix|>[", "]<|tools_suffix|>", f'{{"{N}": {A}}}')),
    "internlm": template(each(f"<|action_start|><|plugin|>\n{OBJECT}<|action_end|>")),
    "nemotron_json": template(listed("<TOOLCALL>[", "]</TOOLCALL>")),
    "lfm2": template(listed("<|tool_call_start|>[", "]<|tool_call_end|>", PYTHON)),
    "pythonic": template(listed("[", "]", PYTHON), prompt="[func_name1(params_name1=params_value1)]"),
    "phi4_mini_json": template(listed("functools[", "]")),
    "solar_open": template(
        "<|tool_calls|>"
        + each(f"<|tool_call:begin|>{{{{ call.id }}}}x<|tool_call:name|>{N}<|tool_call:args|>{A}<|tool_call:end|>")
        + "<|calls|>"
    ),
    "gigachat3": template(each(f"<|message_sep|>\n\nfunction call<|role_sep|>\n{OBJECT}")),
    "gigachat31": template(each(f"<|function_call|>{OBJECT}"), prompt="<|role_sep|> <|message_sep|>"),
    "xlam": template(listed("[", "]"), prompt='[{"name": "tool_call_name", "arguments": {"arg1": "value1"}}]'),
    "hy_v3": template(
        HY.replace("@", ":opensource"), prompt="{{ '<tool_calls{}>' + '<tool_sep{}>'.format(':opensource') }}"
    ),
    "hy_v3_preview": template(HY.replace("@", "")),
    "minicpm5": template(
        each(
            f'<function name="{N}">'
            + tagged(
                '<param name="{{ key }}">{% if value is string and "<" in value %}<![CDATA[{{ value }}]]>{% else %}'
                f"{V}{{% endif %}}</param>"
            )
            + "</function>",
            "{{ '\n' }}",
        )
    ),
    "minimax_m1": template(
        "<tool_calls>\n" + each(OBJECT, "{{ '\n' }}") + "{{ '\n' }}</tool_calls>", "<beginning_of_sentence>"
    ),
    "minimax_m2": template("<minimax:tool_call>\n" + each(INVOKE + "</invoke>{{ '\n' }}") + "</minimax:tool_call>"),
    "minimax_m3": M3
    + template(
        f"{NS}<tool_call>\n"
        + each(
            f'{NS}<invoke name="{N}">{{{{ value(call.function.arguments) }}}}{NS}</invoke>' + "{{ '\n' }}",
        )
        + f"{NS}</tool_call>"
    ),
    "hunyuan_a13b": template(listed("<tool_calls>[", "]</tool_calls>"), prompt='<tool_calls>[{"name": "f"}]'),
    "granite": template(listed("<|tool_call|>[", "]"), prompt="<|tool_call|> followed by a JSON list"),
    "granite-20b-fc": template(each(f"<function_call> {OBJECT}"), prompt="<function_response>"),
    "glm": template(each(GLM + "</tool_call>", "{{ '\n' }}")),
    "qwen3_coder": template(each(f"<tool_call>\n{QWEN}\n</tool_call>", "{{ '\n' }}")),
    "seed_oss": template(each(f"<seed:tool_call>\n{QWEN}\n</seed:tool_call>", "{{ '\n' }}")),
    "functionary_v31": template(each(f"<function={N}>{A}</function>")),
    "harmony": template(
        "{% for call in message.tool_calls[:1] %}<|channel|>commentary to=functions." + N + " <|constrain|>json"
        "<|message|>" + A + "<|call|>{% endfor %}",
        prompt="<|start|>assistant<|channel|>analysis<|message|><|channel|>final<|message|>",
    ),
}
"""The form's name → a template."""


@cache
def tokenizer() -> Any:
    return load_tokenizer(write_tokenizer(Path(tempfile.mkdtemp())))


def written(
    form: str, calls: Sequence[tuple[str, dict[str, Any]]], content: str = "", tools: Sequence[Any] | None = None
) -> str:
    """A turn with these calls as the form's template writes it."""
    made = [
        {"id": f"a1b2c3d4{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    turn = {"role": "assistant", "content": content, "tool_calls": made}
    messages = [{"role": "user", "content": "Hi"}, turn]
    text: str = tokenizer().apply_chat_template(messages, chat_template=TEMPLATES[form], tools=tools, tokenize=False)
    return text
