"""Chat templates of families: turns in each family's style, tools, and thoughts and calls in the form of its models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from openai_bls.output.detect import HARMONY
from openai_bls.output.harmony import HARMONY_REASONING
from openai_bls.output.reasoning_forms import REASONINGS
from openai_bls.output.reasoning_parser import Reasoning
from tests.unit.output.tool_parsers.chat_templates import TEMPLATES

_MARKER = re.compile(r"<[^<>\s'\"{}()=]{1,40}>|\[/?[A-Z_]{3,}\]")
_CONTENT = "{{ message.content or '' }}"
_LOOP = "{% for message in messages %}"
_TOOLS = "{% if tools %}"


class Style(NamedTuple):
    """Turns of a family's chats."""

    turns: Mapping[str, tuple[str, str]]
    """Role → text before and after the content. What is before the assistant's is the prompt of its turn, and the first
    marker after it is the end token."""
    bos: str = ""

    @property
    def eos(self) -> str:
        """The end token."""
        return markers(self.turns["assistant"][1])[0]


def _named(begin: str, end: str, bos: str = "", **names: str) -> Style:
    """Style whose turns differ by the role's name alone, which `ROLE` stands for."""
    roles = ("system", "user", "assistant", "tool")
    return Style({role: (begin.replace("ROLE", names.get(role, role)), end) for role in roles}, bos)


def _turns(system: tuple[str, str], user: tuple[str, str], assistant: tuple[str, str], bos: str = "") -> Style:
    """Style whose results of tools are turns of the user's."""
    return Style({"system": system, "user": user, "assistant": assistant, "tool": user}, bos)


_COHERE = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
_END_COHERE = "<|END_OF_TURN_TOKEN|>"
_SIGNS = {"hunyuan_a13b": '[{"name": "func_name1"}]', "kimi_k3": "{% set tag = 'think' %}"}
"""What else tells a form of thoughts in its models' templates."""
STYLES: dict[str, Style] = {
    "apertus": _named("<|ROLE_start|>", "<|ROLE_end|>", "<s>"),
    "bare": _turns(("", "[SEP]"), ("", "[SEP]"), ("", "[SEP]")),
    "chatml": _named("<|im_start|>ROLE\n", "<|im_end|>\n"),
    "chatml after a BOS": _named("<|im_start|>ROLE\n", "<|im_end|>\n", "<s>"),
    "cohere": _turns(
        (_COHERE.format("SYSTEM"), _END_COHERE),
        (_COHERE.format("USER"), _END_COHERE),
        (_COHERE.format("CHATBOT"), _END_COHERE),
        "<BOS_TOKEN>",
    ),
    "deepseek": _turns(
        ("", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"), "<｜begin▁of▁sentence｜>"
    ),
    "exaone": _named("[|ROLE|]", "<|endofturn|>\n"),
    "falcon": _named("ROLE: ", "<|endoftext|>\n", system="System", user="User", assistant="Falcon"),
    "gemma": _named("<start_of_turn>ROLE\n", "<end_of_turn>\n", "<bos>", assistant="model"),
    "gemma4": _named("<|turn>ROLE\n", "<turn|>\n", "<bos>", assistant="model"),
    "gigachat": _named("ROLE<|role_sep|>\n", "<|message_sep|>\n\n", "<s>"),
    "glm": _named("<|ROLE|>\n", "<|endoftext|>", "[gMASK]<sop>", tool="observation"),
    "granite": _named("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n"),
    "harmony": _turns(
        ("<|start|>system<|message|>", "<|end|>"),
        ("<|start|>user<|message|>", "<|end|>"),
        ("<|start|>assistant", "<|return|>"),
    ),
    "hunyuan": _turns(("", "<|hy_extra_4|>"), ("", "<|hy_extra_0|>"), ("", "<|hy_eos|>"), "<|hy_startoftext|>"),
    "inst": _turns(("<<SYS>>\n", "\n<</SYS>>\n\n"), ("[INST] ", " [/INST]"), ("", "</s>"), "<s>"),
    "inst with prompts": _turns(("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), ("[INST]", "[/INST]"), ("", "</s>"), "<s>"),
    "kimi": _named("<|im_ROLE|>ROLE<|im_middle|>", "<|im_end|>"),
    "llama3": _named("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", "<|begin_of_text|>"),
    "llama4": _named("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>", "<|begin_of_text|>"),
    "minimax": _named("]~b]ROLE\n", "[END_OF_TURN]\n", assistant="ai"),
    "nemotron": _named("<SPECIAL_1>ROLE\n", "<SPECIAL_12>\n", "<s>"),
    "phi": _named("<|ROLE|>\n", "<|end|>\n"),
    "seed": _named("<seed:bos>ROLE\n", "<seed:eos>"),
    "solar": _turns(
        ("<|begin|>system<|content|>", "<|end|>"),
        ("<|begin|>user<|content|>", "<|end|>"),
        ("<|begin|>assistant", "<|flush|>"),
    ),
    "vicuna": _turns(("", "\n\n"), ("USER: ", " "), ("ASSISTANT:", "</s>"), "<s>"),
    "zephyr": _named("<|ROLE|>\n", "</s>\n"),
}
"""By the family that began with it."""


def reasoning_of(thoughts: str) -> Reasoning:
    """The form of thoughts of this name."""
    if thoughts == HARMONY:
        return HARMONY_REASONING._replace(heads=("<|channel|>final<|message|>",), bare=True)
    return REASONINGS[thoughts]


def markers(text: str) -> list[str]:
    """Texts of a template that are tokens of the family's vocabulary."""
    return list(dict.fromkeys(_MARKER.findall(text)))


def turns_text(style: Style) -> str:
    """Everything that turns of a style have around the content."""
    return style.bos + "".join(part for turn in style.turns.values() for part in turn)


def template(style: Style, calls: str = "", thoughts: str = "") -> str:
    """Chat template of a family.

    Args:
        style: turns.
        calls: name of the form of calls; empty takes no tools.
        thoughts: name of the form of thoughts; empty has none.
    """
    macros, asked, written = _calls(calls) if calls else ("", "", "")
    begin, end = style.turns["assistant"]
    own = _text(begin) + _thoughts(thoughts) + written + _text(end)
    others = "".join(
        f"{{% elif message.role == '{role}' %}}{_text(around[0])}{{{{ message.content }}}}{_text(around[1])}"
        for role, around in style.turns.items()
        if role != "assistant"
    )
    return (
        f"{macros}{_text(style.bos)}{_asked(asked, thoughts)}{_LOOP}{{% if message.role == 'assistant' %}}{own}{others}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{_text(begin)}{{% endif %}}"
    )


def _text(text: str) -> str:
    """Code that writes `text`, whose line breaks no option of Jinja takes away."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""


def _asked(asked: str, thoughts: str) -> str:
    """Code that writes the tools."""
    return f"{_TOOLS}{asked}{_SIGNS.get(thoughts, '')}{{% endif %}}" if asked else ""


def _calls(form: str) -> tuple[str, str, str]:
    """What the template of a form has: macros, what it says of the tools, and an assistant's calls."""
    macros, _, rest = TEMPLATES[form].partition(_LOOP)
    prompt = rest.partition(_TOOLS)[2].partition("{% endif %}{% elif")[0]
    written = rest.partition(_CONTENT)[2].removesuffix("{% endif %}{% endfor %}")
    asked = f"{prompt}{{% for tool in tools %}}{{{{ tool.function | tojson }}}}{{% endfor %}}"
    return macros, asked, f"{{% if message.tool_calls %}}{written}{{% endif %}}"


def _thoughts(name: str) -> str:
    """Code that writes an assistant's thoughts and content."""
    if not name:
        return _CONTENT
    form = reasoning_of(name)
    head, closer = next(iter(form.heads), ""), next(iter(form.closers), "")
    thoughts = "{% set thoughts = message.thinking or message.reasoning_content %}"
    # After the harmony format's end nothing stands but the next message.
    space = "" if not form.space else "\n\n"
    told = f"{_text(form.begin)}{{{{ thoughts }}}}{_text(form.end + space)}"
    content = f"{_text(head)}{{{{ message.content }}}}{_text(closer)}"
    return f"{thoughts}{{% if thoughts %}}{told}{{% endif %}}{{% if message.content %}}{content}{{% endif %}}"
