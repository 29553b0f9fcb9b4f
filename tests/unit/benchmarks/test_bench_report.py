from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.contenders.servers import word_token_ids
from benchmarks.support import report


def test_sections_are_appended_then_rewritten() -> None:
    document = report.with_section("# Results\n", "a", "first")
    document = report.with_section(document, "b", "second")
    again = report.with_section(document, "a", "changed")
    assert again == document.replace("first", "changed")
    assert again.startswith("# Results\n\n<!-- begin: a -->\n\nchanged\n\n<!-- end: a -->\n")
    with pytest.raises(ValueError, match="without"):
        report.with_section("<!-- begin: a -->", "a", "x")


def test_null_engine_tokens_are_words(tmp_path: Path) -> None:
    assert word_token_ids(tmp_path) == []
    folder = tmp_path / "preprocessing" / "1" / "tokenizer"
    folder.mkdir(parents=True)
    vocabulary = {"Ġthe": 9, "the": 1, "Ġof": 4, "Ġ1": 5, "Ġa": 6, "ĠThe": 7}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert word_token_ids(tmp_path) == [4, 9]
