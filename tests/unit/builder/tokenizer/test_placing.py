"""What a build says of a placed tokenizer's chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.builder.tokenizer.placing import report_template
from openai_bls.output.detect import UNKNOWN_REASONING
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from tests.unit.core_support import write_tokenizer


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content }}", []),
        (None, []),
        ("{{ '<think>' + messages[0].content + '</think>' }}", []),
        ("{{ '<musing>' + messages[0].reasoning_content | default('') + '</musing>' }}", [UNKNOWN_REASONING]),
        (
            "{% if %}",
            [
                "completions work, conversations are refused (501), as not even one short message can be had: The "
                "model's chat template cannot be parsed: Expected an expression, got 'end of statement block' (line 1)."
            ],
        ),
    ],
)
def test_what_is_said_of_a_template(tmp_path: Path, template: str | None, said: list[str]) -> None:
    lines: list[str] = []
    folder = write_tokenizer(tmp_path, template)
    report_template(load_tokenizer(folder), folder, lines.append)
    assert lines == said
