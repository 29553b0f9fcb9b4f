"""Formats of tool calls by model family: what the models' chat templates write."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

from openai_bls.output.tool_parsers import kimi_and_lists, xml_families
from openai_bls.output.tool_parsers import llama_mistral_deepseek as readers
from openai_bls.output.tool_parsers.formats import NAME, ToolFormat, names_of
from openai_bls.output.tool_parsers.parser import HERMES
from openai_bls.output.tool_parsers.pythonic import PYTHON_END, PYTHON_START, pythonic
from openai_bls.output.tool_parsers.xml import xml_calls

_ALPHANUMERIC = string.ascii_letters + string.digits


def short_call_id() -> str:
    """Nine random letters and digits: Mistral's templates take no other ids."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def _schemas(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


_DEEPSEEK_MARKERS = frozenset(
    {readers.CALLS_BEGIN, readers.CALLS_END, readers.CALL_BEGIN, readers.CALL_END, readers.SEPARATOR}
)
_MISTRAL_MARKERS = frozenset({readers.TOOL_CALLS, readers.CALL_ID, readers.ARGS})

HERMES_FORMAT = ToolFormat(
    "hermes",
    lambda _: HERMES,
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    trigger="<tool_call>",
    special=frozenset({"<tool_call>", "</tool_call>"}),
)
LLAMA3_JSON = ToolFormat(
    "llama3_json",
    lambda tools: readers.llama3_json(names_of(tools)),
    begin='{"name": "{name}", "parameters": ',
    end="}",
    trigger='{"name"',
    separator="; ",
    special=frozenset({readers.PYTHON_TAG}),
    only_at_start=(' { "name"', ' { "type" : "function"', " <|python_tag|>"),
)
MISTRAL = ToolFormat(
    "mistral",
    lambda _: readers.MISTRAL,
    open="[TOOL_CALLS] [",
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    close="]",
    trigger="[TOOL_CALLS]",
    special=_MISTRAL_MARKERS,
    new_id=short_call_id,
)
MISTRAL_TEKKEN = MISTRAL._replace(name="mistral_tekken", open="[TOOL_CALLS][")
MISTRAL_V13 = ToolFormat(
    "mistral_v13",
    lambda _: readers.MISTRAL,
    begin="[TOOL_CALLS]{name}[ARGS]",
    end="",
    separator="",
    trigger="[TOOL_CALLS]",
    special=_MISTRAL_MARKERS,
    new_id=short_call_id,
)
MISTRAL_V11 = MISTRAL_V13._replace(
    name="mistral_v11", begin="[TOOL_CALLS]{name}[CALL_ID]", call_id=("[a-zA-Z0-9]{9}", readers.ARGS)
)
DEEPSEEK_V3 = ToolFormat(
    "deepseek_v3",
    lambda _: readers.DEEPSEEK,
    open=readers.CALLS_BEGIN,
    begin=f"{readers.CALL_BEGIN}function{readers.SEPARATOR}{NAME}\n```json\n",
    end=f"\n```{readers.CALL_END}",
    close=readers.CALLS_END,
    trigger=readers.CALLS_BEGIN,
    excludes=(readers.CALL_BEGIN,),
    special=_DEEPSEEK_MARKERS,
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    lambda _: readers.DEEPSEEK,
    open=readers.CALLS_BEGIN,
    begin=f"{readers.CALL_BEGIN}{NAME}{readers.SEPARATOR}",
    end=readers.CALL_END,
    separator="",
    close=readers.CALLS_END,
    trigger=readers.CALLS_BEGIN,
    excludes=(readers.CALL_BEGIN,),
    special=_DEEPSEEK_MARKERS,
)
QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    lambda tools: xml_calls(_schemas(tools)),
    # The grammar of the parameters has the line breaks around them.
    begin="<tool_call>\n<function={name}>",
    end="</function>\n</tool_call>",
    trigger="<tool_call>",
    excludes=("<function=",),
    special=frozenset({"<tool_call>", "</tool_call>"}),
    style="qwen_xml",
)
SEED_OSS = QWEN3_CODER._replace(
    name="seed_oss",
    syntax=lambda tools: xml_calls(_schemas(tools), "seed:tool_call"),
    begin="<seed:tool_call>\n<function={name}>",
    end="</function>\n</seed:tool_call>",
    trigger="<seed:tool_call>",
    special=frozenset({"<seed:tool_call>", "</seed:tool_call>"}),
)
GLM = ToolFormat(
    "glm",
    lambda tools: xml_families.glm(_schemas(tools)),
    # The grammar of the arguments has the line breaks around them.
    begin="<tool_call>{name}",
    end="</tool_call>",
    trigger="<tool_call>",
    special=frozenset(xml_families.GLM_TAGS),
    style="glm_xml",
)
MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    lambda tools: xml_families.invokes(xml_families.MINIMAX_M2, _schemas(tools)),
    open="<minimax:tool_call>\n",
    begin='<invoke name="{name}">',
    end="</invoke>\n",
    separator="",
    close="</minimax:tool_call>",
    trigger="<minimax:tool_call>",
    special=frozenset({"<minimax:tool_call>", "</minimax:tool_call>"}),
    style="minimax_xml",
)
DEEPSEEK_V32 = ToolFormat(
    "deepseek_v32",
    lambda tools: xml_families.invokes(xml_families.DEEPSEEK_V32, _schemas(tools)),
    open="<｜DSML｜function_calls>\n",
    begin='<｜DSML｜invoke name="{name}">',
    end="</｜DSML｜invoke>\n",
    separator="",
    close="</｜DSML｜function_calls>",
    trigger="<｜DSML｜function_calls>",
    special=frozenset({"｜DSML｜"}),
    style="deepseek_xml",
)
KIMI_K2 = ToolFormat(
    "kimi_k2",
    lambda _: kimi_and_lists.KIMI_K2,
    open=kimi_and_lists.SECTION_BEGIN,
    begin=f"{kimi_and_lists.KIMI_CALL_BEGIN}{kimi_and_lists.FUNCTIONS}{NAME}:",
    end=kimi_and_lists.KIMI_CALL_END,
    separator="",
    close=kimi_and_lists.SECTION_END,
    trigger=kimi_and_lists.SECTION_BEGIN,
    excludes=(kimi_and_lists.KIMI_CALL_BEGIN,),
    special=kimi_and_lists.KIMI_MARKERS,
    call_id=("[0-9]{1,4}", kimi_and_lists.ARGUMENT_BEGIN),
)
HUNYUAN_A13B = ToolFormat(
    "hunyuan_a13b",
    lambda _: kimi_and_lists.TOOL_CALLS_BLOCK,
    open="<tool_calls>[",
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    close="]</tool_calls>",
    trigger="<tool_calls>",
    special=frozenset({"<tool_calls>", "</tool_calls>"}),
)
MINIMAX_M1 = HUNYUAN_A13B._replace(name="minimax_m1", open="<tool_calls>\n", separator="\n", close="\n</tool_calls>")
GRANITE = HUNYUAN_A13B._replace(
    name="granite",
    syntax=lambda _: kimi_and_lists.GRANITE,
    open="<|tool_call|>[",
    close="]",
    trigger="<|tool_call|>",
    excludes=("<tool_call>",),
    special=frozenset({"<|tool_call|>", "<tool_call>"}),
)
PYTHONIC = ToolFormat(
    "pythonic",
    lambda tools: pythonic(names_of(tools)),
    open="[",
    begin="{name}(",
    end=")",
    separator=", ",
    close="]",
    trigger="[",
    special=frozenset({PYTHON_START, PYTHON_END}),
    style="pythonic",
    only_at_start=(" [ {name} (", f" {PYTHON_START}"),
)
