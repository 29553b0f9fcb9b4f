"""Guided decoding, by llguidance whichever backend is played.

As xgrammar it takes JSON schemas with white space anywhere and nothing that they do not declare, regular expressions,
GBNF and, in the PyTorch flow, structural tags; as llguidance JSON schemas, regular expressions and Lark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llguidance
from llguidance import LLMatcher

from openai_bls.output.structured import formats
from openai_bls.output.structured.grammars import gbnf
from openai_bls.output.structured.libraries import gbnf_lark, lark


class Guides:
    """Makes matchers for one tokenizer."""

    def __init__(self, backend: str, tokenizer_dir: Path, end_id: int | None, vocab_size: int, flow: str) -> None:
        self._flow = flow
        self._vocab_size = vocab_size
        self.backend = backend
        content = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))
        if backend == "xgrammar":
            # Markers are text to it.
            for token in content.get("added_tokens", ()):
                token["special"] = token["id"] == end_id
        self._tokenizer: Any = llguidance.LLTokenizer(json.dumps(content), n_vocab=vocab_size, eos_token=end_id)

    def start(self, params: Any) -> Matcher:
        """A matcher for a request's GuidedDecodingParams; raises ValueError where the real one fails the request."""
        text = self._as_xgrammar(params) if self.backend == "xgrammar" else _as_llguidance(params)
        return Matcher(self._tokenizer, text, self._vocab_size)

    def _as_xgrammar(self, params: Any) -> str:
        if params.structural_tag is not None:
            if self._flow == "tensorrt":
                raise ValueError("kSTRUCTURAL_TAG is not supported by the xgrammar backend")
            return lark.lark(formats.checked(_format(json.loads(params.structural_tag)["format"])))
        if params.json_object or params.json is not None:
            schema = {"type": "object"} if params.json_object else params.json
            return _json(json.loads(schema) if isinstance(schema, str) else schema)
        if params.regex is not None:
            return str(LLMatcher.grammar_from_regex(params.regex))
        return gbnf_lark.lark(gbnf.parse(params.grammar))


def _as_llguidance(params: Any) -> str:
    if params.structural_tag is not None:
        raise ValueError("Unsupported guide type: GuideType.STRUCTURAL_TAG.")
    if params.json is not None or params.json_object:
        schema = params.json if params.json is not None else '{"type": "object"}'
        return str(LLMatcher.grammar_from_json_schema(schema))
    if params.regex is not None:
        return str(LLMatcher.grammar_from_regex(params.regex))
    return str(LLMatcher.grammar_from_lark(params.grammar))


def _json(schema: Any) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(_strict(schema))))


def _strict(node: Any) -> Any:
    """As its strict mode has it: what is not declared is not allowed."""
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, dict):
        return node
    found = {key: _strict(part) for key, part in node.items()}
    if found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    if found.get("type") == "array":
        found.setdefault("items", False)
    return found


def _format(node: Any) -> Any:
    """A format of its structural tags in the words of `formats`."""
    if isinstance(node, list):
        return [_format(part) for part in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") in ("json_schema", "qwen_xml_parameter"):
        style = {"style": "qwen_xml"} if node["type"] == "qwen_xml_parameter" else {}
        return {"type": "json_schema", "json_schema": node["json_schema"], **style}
    return {key: _format(part) for key, part in node.items()}


class Matcher:
    """At one place of a grammar."""

    def __init__(self, tokenizer: Any, grammar: str, vocab_size: int) -> None:
        self._matcher = LLMatcher(tokenizer, grammar)
        if self._matcher.is_error():
            raise ValueError(f"matcher error: {self._matcher.get_error()}")
        self._vocab_size = vocab_size

    def mask(self) -> Any:
        """True where a token may come, shape [vocab_size]."""
        import numpy as np
        import torch

        words = torch.from_numpy(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32).copy())
        spread = (words.view(-1, 1) >> torch.arange(32, dtype=torch.int32)) & 1
        return spread.view(-1)[: self._vocab_size].bool()

    def accept(self, token: int) -> None:
        """Go on."""
        if not self._matcher.is_stopped():
            self._matcher.try_consume_tokens([token])
