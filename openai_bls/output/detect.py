"""Model format detection: tool-call and reasoning formats, by the chat template or by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.nearest import meant_or_known
from openai_bls.output.events import OutputParser
from openai_bls.output.harmony import HARMONY_FORMAT, HARMONY_REASONING, MARKERS, HarmonyParser, is_harmony
from openai_bls.output.reasoning_forms import ENDING_CALLS, REASONINGS
from openai_bls.output.reasoning_forms import SIGNS as _REASONING_SIGNS
from openai_bls.output.reasoning_parser import Reasoning, ReasoningParser
from openai_bls.output.tool_parsers.families.json_calls import (
    apertus,
    cohere,
    functionary,
    gigachat3,
    granite,
    granite_20b,
    hermes,
    hunyuan,
    internlm2,
    kimi_k2,
    llama3_json,
    mistral,
    nemotron,
    phi4_mini,
    solar_open,
    xlam,
)
from openai_bls.output.tool_parsers.families.literals import gemma, lfm2, pythonic
from openai_bls.output.tool_parsers.families.tags import (
    deepseek,
    glm,
    hy_v3,
    kimi_k3,
    minicpm5,
    minimax,
    minimax_m3,
    qwen3_coder,
)
from openai_bls.output.tool_parsers.formats import Sign, ToolFormat, names_of, written

__all__ = ["REASONINGS", "ModelFormats", "Reasoning", "ToolFormat", "chat_template", "detect"]

# In the order in which their signs are looked for: the first that fits counts.
_FAMILIES = (
    deepseek, kimi_k2, kimi_k3, gemma, cohere, apertus, internlm2, nemotron, lfm2, phi4_mini, solar_open, gigachat3,
    xlam, hy_v3, minicpm5, minimax, minimax_m3, hunyuan, granite, granite_20b, glm, qwen3_coder, functionary, hermes,
    mistral, pythonic, llama3_json,
)  # fmt: skip
TOOL_FORMATS: dict[str, ToolFormat] = {
    tool_format.name: tool_format for family in _FAMILIES for tool_format in family.FORMATS
}

HARMONY = "harmony"
"""Name of gpt-oss's format, of which reasoning and calls are parts: chosen for one of them it is chosen for both."""

# Without its closing mark each goes on to the end of the template, so that the search stays linear.
_COMMENT = re.compile(r"\{#.*?(?:#\}|\Z)", re.DOTALL)
_BLOCK = re.compile(r"\{[{%](.*?)(?:[%}]\}|\Z)", re.DOTALL)
_STRING = re.compile(r"'(?:\\.|[^'\\])*'?|\"(?:\\.|[^\"\\])*\"?", re.DOTALL)
_TOOLS = re.compile(r"(?<![\w.])tools\b")
SWITCHES = ("enable_thinking", "thinking")
"""Names that chat templates have for whether to think."""
# "thinking" is also what templates call a thought; as a switch it is asked for. A switch that is only set is no
# client's, as in Nemotron Nano v2, which reads it from the messages.
_THINKING = re.compile(
    r"(?<![\w.])(reasoning_effort|thinking_effort|reasoning_strength|thinking_budget|thinking_mode"
    r"|enable_thinking(?!\s*=[^=])|(?:(?<=if )|(?<=not )|(?<=and )|(?<=or ))thinking"
    r"|thinking(?=\s+is\b)|reasoning(?=\s+is\s+(?:not\s+)?(?:un)?defined\b))\b"
)
# Markers of thoughts, and fields of messages that hold them.
_THOUGHTS = re.compile(
    r"<[^<>\s'\"]{0,40}(?:think|thought|reasoning)[^<>\s'\"]{0,40}>|\[/?THINK[A-Z]*\]|(?<!\w)reasoning_content(?!\w)"
    r"|(?:\.|\[['\"]|get\(['\"])(?:reasoning|thinking|thoughts?)(?!\w)",
    re.IGNORECASE,
)
UNKNOWN_REASONING = (
    "the chat template has signs of thoughts in a form that is not known: they come as a part of the answer; "
    "'reasoning_parser' of openai_bls names a form, or 'none'"
)
"""What is said of a model of which `ModelFormats.unknown_reasoning` is true."""
UNKNOWN_CALLS = (
    "the chat template takes tools, and the form of its calls is not known: requests with tools are refused; "
    "'tool_call_parser' of openai_bls names a form, or 'none'"
)
"""What is said of a model of which `ModelFormats.unknown_calls` is true."""


class ModelFormats(msgspec.Struct, frozen=True):
    """The formats of one model's output."""

    tool_format: ToolFormat | None = None
    """None: tool calls are not parsed."""
    reasoning: Reasoning | None = None
    """None: the model has no reasoning between markers."""
    takes_tools: bool = False
    """The chat template renders tools."""
    takes_thinking_hints: bool = False
    """The chat template has levels of effort, or a switch for thinking."""
    harmony: bool = False
    """The output is in gpt-oss's format, of which both are a part."""
    unknown_reasoning: bool = False
    """The chat template has signs of thoughts, in a form that no parser reads: they come as content."""
    unknown_calls: bool = False
    """The chat template takes tools, and no parser reads how it writes their calls: tools are refused."""

    @property
    def warnings(self) -> list[str]:
        """What is not known of the model's output, each a sentence."""
        said = {UNKNOWN_REASONING: self.unknown_reasoning, UNKNOWN_CALLS: self.unknown_calls}
        return [text for text, unknown in said.items() if unknown]

    def parsers(
        self,
        *,
        tools: Sequence[dict[str, Any]] | None,
        reasoning_open: bool,
        tool_format: ToolFormat | None = None,
        held: bool = False,
    ) -> Callable[[], OutputParser | None]:
        """Maker of a parser for each answer to a request; it makes None if all of an answer is content.

        Args:
            tools: the request's tools in OpenAI's form; None if the answer may not call them.
            reasoning_open: the prompt ends within reasoning (`Reasoning.opened_by`).
            tool_format: form of the calls in this answer; None is the model's own.
            held: see `ReasoningParser`.
        """
        if self.harmony:
            names = frozenset(names_of(tools or ()) if self.tool_format is not None else ())
            return partial(HarmonyParser, has_tools=bool(names), names=names, reasoning_open=reasoning_open)
        tool_format = tool_format or self.tool_format
        calls = tool_format.parsers(tools) if tool_format is not None and tools else None
        reasoning = self.reasoning
        if reasoning is None:
            return calls or (lambda: None)
        ending = self.ending_calls(tool_format) if calls is not None else ()
        # Where no marker tells a call, text that is held could be one.
        held = held and (calls is None or bool(ending))

        def both() -> ReasoningParser:
            inner = None if calls is None else calls()
            return ReasoningParser(reasoning, opened=reasoning_open, inner=inner, calls=ending, held=held)

        return both

    def ending_calls(self, tool_format: ToolFormat | None) -> tuple[str, ...]:
        """Beginnings of the calls of a form that end the reasoning; none where they are a part of it."""
        ends = tool_format is not None and tool_format.name in ENDING_CALLS and not self.harmony
        return (tool_format.trigger,) if tool_format is not None and ends else ()

    def kept_special(self, tools: bool) -> frozenset[str]:
        """Markers that the detokenizer must keep in the text although they may be special tokens.

        Args:
            tools: tool calls are parsed.
        """
        if self.harmony:
            return MARKERS
        kept = frozenset[str]()
        if self.reasoning is not None:
            kept |= self.reasoning.kept
        if tools and self.tool_format is not None:
            kept |= self.tool_format.special
        return kept


def detect(chat_template: str | None, tool_call_parser: str = "auto", reasoning_parser: str = "auto") -> ModelFormats:
    """The formats of a model.

    Args:
        chat_template: text of the template.
        tool_call_parser: a name in `TOOL_FORMATS`, `harmony`, `auto` (by the template) or `none`.
        reasoning_parser: a name in `REASONINGS`, `harmony`, `auto` or `none`.

    Raises:
        ValueError: no format has that name.
    """
    template = chat_template or ""
    tool_formats = {**TOOL_FORMATS, HARMONY: HARMONY_FORMAT}
    tool_signs = {name: tool_format.signs for name, tool_format in TOOL_FORMATS.items()}
    tool_name = _choose("tool_call_parser", tool_call_parser, tool_formats, tool_signs, template)
    reasonings = {**REASONINGS, HARMONY: HARMONY_REASONING}
    reasoning_name = _choose("reasoning_parser", reasoning_parser, reasonings, _REASONING_SIGNS, template)
    if HARMONY in (tool_name, reasoning_name):
        calls = None if tool_call_parser == "none" else HARMONY_FORMAT
        return ModelFormats(calls, HARMONY_REASONING, takes_tools(template), True, harmony=True)
    return ModelFormats(
        TOOL_FORMATS[tool_name] if tool_name is not None else None,
        REASONINGS[reasoning_name] if reasoning_name is not None else None,
        takes_tools(template),
        bool(thinking_variables(template)),
        unknown_reasoning=reasoning_parser == "auto" and reasoning_name is None and has_thoughts(template),
        unknown_calls=tool_call_parser == "auto" and tool_name is None and takes_tools(template),
    )


def _choose(
    setting: str, value: str, known: dict[str, Any], signs: Mapping[str, tuple[Sign, ...]], template: str
) -> str | None:
    if value == "auto" and is_harmony(template):
        return HARMONY
    if value == "auto":
        plain = written(template)
        return next((name for name, any_of in signs.items() if any(sign.fits(plain) for sign in any_of)), None)
    if value != "none" and value not in known:
        raise ValueError(f"{setting} is {value!r}; {meant_or_known(value, ['auto', 'none', *sorted(known)])}")
    return None if value == "none" else value


def takes_tools(template: str) -> bool:
    """True if a template's code uses the variable `tools`; text, strings and comments do not count."""
    return any(_TOOLS.search(code) for code in _code(template))


def thinking_variables(template: str) -> frozenset[str]:
    """Variables of a template's code that say whether, and how much, to think."""
    return frozenset(name for code in _code(template) for name in _THINKING.findall(code))


def has_thoughts(template: str) -> bool:
    """True if a template has signs of thoughts of any form: their markers, their fields, or variables about them."""
    text = _COMMENT.sub("", template)
    return bool(_THOUGHTS.search(text) or thinking_variables(template))


def _code(template: str) -> Iterator[str]:
    """The code of a template, block by block, without comments and strings."""
    for block in _BLOCK.findall(_COMMENT.sub("", template)):
        yield _STRING.sub("", block)


def chat_template(tokenizer_dir: Path) -> str | None:
    """The chat template in a tokenizer's folder, the one for tools if there are several.

    Raises:
        ValueError: tokenizer_config.json is not JSON, or its template is neither text nor a list of named texts.
    """
    for name in ("additional_chat_templates/tool_use.jinja", "chat_template.jinja"):
        file = tokenizer_dir / name
        if file.is_file():
            return file.read_text(encoding="utf-8")
    file = tokenizer_dir / "tokenizer_config.json"
    if not file.is_file():
        return None
    try:
        template = msgspec.json.decode(file.read_bytes(), type=_Config).chat_template
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file}: {error}") from None
    if isinstance(template, list):
        named = {entry.name: entry.template for entry in template}
        return named.get("tool_use", named.get("default"))
    return template


class _Named(msgspec.Struct):
    name: str
    template: str


class _Config(msgspec.Struct):
    chat_template: str | list[_Named] | None = None
