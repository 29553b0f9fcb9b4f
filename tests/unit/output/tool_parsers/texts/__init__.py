"""Texts that models write, by the form of their tool calls, and what is found in them."""

from tests.unit.output.parsing import Form
from tests.unit.output.tool_parsers.texts import (
    gemma,
    hermes,
    kimi_and_lists,
    llama_mistral_deepseek,
    markers_and_json,
    newer_families,
    pythonic,
    qwen3_coder,
    xml_families,
)

FORMS: dict[str, Form] = {
    **gemma.FORMS,
    **hermes.FORMS,
    **kimi_and_lists.FORMS,
    **llama_mistral_deepseek.FORMS,
    **markers_and_json.FORMS,
    **newer_families.FORMS,
    **pythonic.FORMS,
    **qwen3_coder.FORMS,
    **xml_families.FORMS,
}
