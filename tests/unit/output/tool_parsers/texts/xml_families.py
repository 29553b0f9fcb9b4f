"""Texts of GLM, MiniMax-M2 and DeepSeek-V3.2: arguments within tags of their own."""

from __future__ import annotations

import json
from typing import Any

from openai_bls.output.tool_parsers.families.tags.deepseek import V32_TAGS
from openai_bls.output.tool_parsers.families.tags.glm import glm
from openai_bls.output.tool_parsers.families.tags.hy_v3 import HyTags, hy_tags, hy_v3
from openai_bls.output.tool_parsers.families.tags.minicpm5 import minicpm5
from openai_bls.output.tool_parsers.families.tags.minimax import M2_TAGS
from openai_bls.output.tool_parsers.kinds import ToolSchema
from openai_bls.output.tool_parsers.xml import invokes
from tests.unit.output.parsing import Form, Found, content

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "where": {"type": "object"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "note": {"type": ["string", "null"]},
    },
}

SCHEMAS = {"weather": ToolSchema(SCHEMA)}

PARIS_CALL = ("call", "weather", '{"city": "Paris"}')

ALL_KINDS = {"city": ' 你好 "x" \n', "days": 3, "metric": True, "where": {"x": "}"}, "unit": "C", "note": None}

ALL_KINDS_CALL = ("call", "weather", json.dumps(ALL_KINDS, ensure_ascii=False))


def glm_call(name: str, arguments: dict[str, Any]) -> str:
    """As the template of GLM-4.5 writes it."""
    pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{plain(v)}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def minimax(*calls: tuple[str, dict[str, Any]]) -> str:
    """As the template of MiniMax-M2 writes them."""
    written = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in arguments.items())
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<minimax:tool_call>\n{written}</minimax:tool_call>"


def deepseek(*calls: tuple[str, dict[str, Any]]) -> str:
    """As DeepSeek-V3.2's reference writes them."""
    written = ""
    for name, arguments in calls:
        parameters = "\n".join(
            f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{plain(value)}'
            "</｜DSML｜parameter>"
            for key, value in arguments.items()
        )
        written += f'<｜DSML｜invoke name="{name}">\n{parameters}\n</｜DSML｜invoke>\n'
    return f"<｜DSML｜function_calls>\n{written}</｜DSML｜function_calls>"


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


PARIS = glm_call("weather", {"city": "Paris"})

GLM: dict[str, Found] = {
    "": [],
    "a <b> <tool": [content("a <b> <tool")],
    PARIS: [PARIS_CALL],
    f"I look.\n\n{PARIS}\n{PARIS}\n": [content("I look.\n\n"), PARIS_CALL, PARIS_CALL],
    f"{PARIS}\n\nand then\n\n{PARIS} done": [PARIS_CALL, content("\n\nand then\n\n"), PARIS_CALL, content(" done")],
    glm_call("weather", ALL_KINDS): [ALL_KINDS_CALL],
    "<tool_call>now\n</tool_call>": [("call", "now", "{}")],
    # GLM-4.7 has no line breaks
    "<tool_call>now</tool_call>": [("call", "now", "{}")],
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>2"
    "</arg_value></tool_call>": [("call", "weather", '{"city": "Paris", "days": 2}')],
    "<tool_call>weather\n    <arg_key>city</arg_key>\n    <arg_value>Paris</arg_value>\n    </tool_call>": [PARIS_CALL],
    "<tool_call>\nunknown\n<arg_key> x </arg_key><arg_value>1</arg_value></tool_call>": [
        ("call", "unknown", '{"x": 1}')
    ],
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>\na </arg_val <arg_key>\n</arg_value>\n</tool_call>": [
        ("call", "weather", '{"city": "\\na </arg_val <arg_key>\\n"}')
    ],
    # No calls
    "<tool_call>": [content("<tool_call>")],
    "<tool_call></tool_call>": [content("<tool_call></tool_call>")],
    "</tool_call>": [content("</tool_call>")],
    '<tool_call>\n{"name": "f"}\n</tool_call>': [content('<tool_call>\n{"name": "f"}\n</tool_call>')],
    "<tool_call>weather\nand so on": [content("<tool_call>weather\nand so on")],
    f"<tool_call>\n<tool_call>{PARIS}": [content("<tool_call>\n<tool_call>"), PARIS_CALL],
    # Broken off: the call keeps what it got
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days\n<arg_value>2": [
        ("call", "weather", '{"city": "Paris"'),
        content("<arg_key>days\n<arg_value>2"),
    ],
    f"<tool_call>weather\n<arg_key>city</arg_keys> {PARIS}": [
        ("call", "weather", "{"),
        content("<arg_key>city</arg_keys> "),
        PARIS_CALL,
    ],
    # Cut off
    "<tool_call>weath": [content("<tool_call>weath")],
    "<tool_call>weather\n<arg_": [content("<tool_call>weather\n<arg_")],
    "<tool_call>weather\n<arg_key>ci": [("call", "weather", "{")],
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par": [("call", "weather", '{"city": "Par')],
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_v": [("call", "weather", '{"city": "Paris')],
    "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>1": [("call", "weather", '{"days": 1')],
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool": [
        ("call", "weather", '{"city": "Paris"')
    ],
}

ONE: tuple[str, dict[str, Any]] = ("weather", {"city": "Paris"})

TWO: tuple[str, dict[str, Any]] = ("now", {})

TWO_CALLS: Found = [PARIS_CALL, ("call", "now", "{}")]

MINIMAX: dict[str, Found] = {
    "": [],
    'a <invoke name="f"> <mini': [content('a <invoke name="f"> <mini')],
    minimax(ONE): [PARIS_CALL],
    f"I look.\n{minimax(ONE, TWO)}\n": [content("I look.\n"), *TWO_CALLS],
    f"{minimax(TWO)} and {minimax(ONE)} done": [TWO_CALLS[1], content(" and "), PARIS_CALL, content(" done")],
    minimax(("weather", ALL_KINDS)): [ALL_KINDS_CALL],
    minimax(ONE, TWO).replace("\n", ""): TWO_CALLS,
    minimax(ONE, TWO).replace('"', ""): TWO_CALLS,
    # No calls
    "<minimax:tool_call>": [content("<minimax:tool_call>")],
    "<minimax:tool_call>\n</minimax:tool_call>": [content("<minimax:tool_call>\n</minimax:tool_call>")],
    "</minimax:tool_call>": [content("</minimax:tool_call>")],
    '<minimax:tool_call>\n<invoke name="f>\n': [content('<minimax:tool_call>\n<invoke name="f>\n')],
    '<minimax:tool_call>\n<invoke name="">\n': [content('<minimax:tool_call>\n<invoke name="">\n')],
    # Broken off
    minimax(ONE).replace("</minimax", "and </minimax"): [PARIS_CALL, content("\nand </minimax:tool_call>")],
    minimax(ONE).replace("</invoke>", "<x>"): [
        ("call", "weather", '{"city": "Paris"'), content("<x>\n</minimax:tool_call>"),
    ],
    # Cut off
    minimax(ONE, TWO)[:-3]: TWO_CALLS,
    minimax(ONE, TWO)[:-21]: TWO_CALLS,
    minimax(ONE) [: -len("\n</minimax:tool_call>") - 4]: [("call", "weather", '{"city": "Paris"')],
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="days">1': [("call", "weather", '{"days": 1')],
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Par': [("call", "weather", '{"city": "Par')],
    '<minimax:tool_call>\n<invoke name="weather">\n<par': [
        content('<minimax:tool_call>\n<invoke name="weather">\n<par')
    ],
}  # fmt: skip

DEEPSEEK: dict[str, Found] = {
    "": [],
    "a <｜DSML": [content("a <｜DSML")],
    f"I look.\n\n{deepseek(ONE, TWO)}": [content("I look.\n\n"), *TWO_CALLS],
    deepseek(("weather", ALL_KINDS)): [ALL_KINDS_CALL],
    # What the model says of a value counts, not the schema
    deepseek(("weather", {"days": "3", "city": 3, "unit": " C"})): [
        ("call", "weather", '{"days": "3", "city": 3, "unit": " C"}')
    ],
    deepseek(("unknown", {"x": "1", "y": [1]})): [("call", "unknown", '{"x": "1", "y": [1]}')],
    deepseek(("weather", {"city": "a"})).replace("true", "false"): [("call", "weather", '{"city": "a"}')],
    deepseek(("weather", {"city": "a"})).replace("true", "maybe"): [
        ("call", "weather", "{"),
        content(
            '<｜DSML｜parameter name="city" string="maybe">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls>"
        ),
    ],
    deepseek(ONE, TWO)[:-5]: TWO_CALLS,
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="tr': [
        ("call", "weather", "{")
    ],
}

OPEN, PREVIEW = hy_tags(":opensource"), hy_tags("")


def hy(tags: HyTags, *calls: tuple[str, dict[str, Any]]) -> str:
    """As the template of Hy3 writes them."""
    written = ""
    for name, arguments in calls:
        written += f"{tags.call}{name}{tags.separator}\n"
        for key, value in arguments.items():
            written += f"{tags.key}{key}{tags.end_key}\n{tags.value}{plain(value)}{tags.end_value}\n"
        written += f"{tags.end_call}\n"
    return f"{tags.block}\n{written}{tags.end_block}"


def hy_examples(tags: HyTags) -> dict[str, Found]:
    one = hy(tags, ONE)
    return {
        "": [],
        hy(tags, ONE, TWO): TWO_CALLS,
        f"I look.{one}\n": [content("I look."), PARIS_CALL],
        hy(tags, ONE, TWO).replace("\n", "") + " x": [*TWO_CALLS, content(" x")],
        hy(tags, ("weather", ALL_KINDS)): [ALL_KINDS_CALL],
        f"{tags.call}now{tags.separator}{tags.end_call}": [TWO_CALLS[1]],
        tags.block: [content(tags.block)],
        f"{tags.block}{tags.end_block}": [content(f"{tags.block}{tags.end_block}")],
        f"{tags.call}now{tags.end_call}": [content(f"{tags.call}now{tags.end_call}")],
        one[: -len(tags.end_block) - 4]: [("call", "weather", '{"city": "Paris"')],
        one[:-3]: [PARIS_CALL],
    }


def minicpm(name: str, arguments: dict[str, Any]) -> str:
    """As the template of MiniCPM 5 writes it: objects as Python does."""
    written = ""
    for key, value in arguments.items():
        held = value if isinstance(value, str) else str(value)
        if isinstance(value, str) and any(char in value for char in "<&\n"):
            held = f"<![CDATA[{value}]]>"
        written += f'<param name="{key}">{held}</param>'
    return f'<function name="{name}">{written}</function>'


MINICPM: dict[str, Found] = {
    "": [],
    "a <function": [content("a <function")],
    f"{minicpm(*ONE)}\n{minicpm(*TWO)}": TWO_CALLS,
    f"I look.\n{minicpm(*ONE)} x": [content("I look.\n"), PARIS_CALL, content(" x")],
    minicpm("weather", ALL_KINDS): [ALL_KINDS_CALL],
    minicpm("weather", {"city": "a</param><![CDATA[]]&", "days": 2}): [
        ("call", "weather", '{"city": "a</param><![CDATA[]]&", "days": 2}')
    ],
    '<function name="weather">\n<param name="city"><![CDATA</param>\n</function>': [
        ("call", "weather", '{"city": "<![CDATA"}')
    ],
    '<function name="weather"><param>x</param></function>': [
        content('<function name="weather"><param>x</param></function>')
    ],
    '<function name="weather"><param name="city"><![CD': [("call", "weather", '{"city": ')],
    '<function name="weather"><param name="city"><![CDATA[Par]]': [("call", "weather", '{"city": "Par')],
}

PARTS = ["weather", "city", "days", "\n", " ", "<", '"', "12", "null", "text", "你", "\\", "{"]


FORMS = {
    **{
        name: Form(
            hy_v3(tags, SCHEMAS),
            hy_examples(tags),
            [*tags, *PARTS],
            [(tags.call, "a"), ("", tags.block), (f"{tags.call}weather{tags.separator}{tags.key}", "a")],
        )
        for name, tags in (("hy_v3", OPEN), ("hy_v3_preview", PREVIEW))
    },
    "minicpm5": Form(
        minicpm5(SCHEMAS),
        MINICPM,
        ['<function name="', '<param name="', '">', "</param>", "</function>", "<![CDATA[", "]]>", *PARTS],
        [('<function name="', "a"), ('<function name="weather"><param name="days"><![CDATA[', "]")],
    ),
    "glm": Form(
        glm(SCHEMAS),
        GLM,
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *PARTS],
        [("<tool_call>", "a"), ("", "<tool_call>"), ("<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>", "<")],
    ),
    "minimax": Form(
        invokes(M2_TAGS, SCHEMAS),
        MINIMAX,
        ["<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "<invoke name=", '">', "</invoke>", *PARTS],
        [('<minimax:tool_call><invoke name="', "a")],
    ),
    "deepseek_v32": Form(
        invokes(V32_TAGS, SCHEMAS),
        DEEPSEEK,
        ["<｜DSML｜function_calls>", '<｜DSML｜invoke name="', '" string="', 'true">', *PARTS],
        [('<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="', "a")],
    ),
}
