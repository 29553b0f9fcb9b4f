"""Grammars, by the real libraries: xgrammar or llguidance, as TensorRT-LLM has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Guides:
    """Makes matchers for one tokenizer."""

    def __init__(self, backend: str, tokenizer_dir: Path, end_id: int | None, vocab_size: int, flow: str) -> None:
        self._flow = flow
        self._vocab_size = vocab_size
        self.backend = backend
        text = (tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8")
        if backend == "xgrammar":
            import transformers
            import xgrammar

            tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
            info = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size, stop_token_ids=None if end_id is None else [end_id]
            )
            self._compiler: Any = xgrammar.GrammarCompiler(info)
        else:
            import llguidance

            self._tokenizer: Any = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=end_id)

    def start(self, params: Any) -> Matcher:
        """A matcher for a request's GuidedDecodingParams; raises ValueError where the real one fails the request."""
        if self.backend == "xgrammar":
            return _XGrammar(self._compile(params), self._vocab_size)
        return _LLGuidance(self._tokenizer, self._lark(params), self._vocab_size)

    def _compile(self, params: Any) -> Any:
        if params.structural_tag is not None:
            if self._flow == "tensorrt":
                raise ValueError("kSTRUCTURAL_TAG is not supported by the xgrammar backend")
            return self._compiler.compile_structural_tag(params.structural_tag)
        if params.json_object:
            return self._compiler.compile_builtin_json_grammar()
        if params.json is not None:
            schema = params.json if isinstance(params.json, str) else json.dumps(params.json)
            return self._compiler.compile_json_schema(schema)
        if params.regex is not None:
            return self._compiler.compile_regex(params.regex)
        return self._compiler.compile_grammar(params.grammar)

    def _lark(self, params: Any) -> str:
        import llguidance

        if params.structural_tag is not None:
            raise ValueError("Unsupported guide type: GuideType.STRUCTURAL_TAG.")
        if params.json is not None or params.json_object:
            schema = params.json if params.json is not None else '{"type": "object"}'
            return str(llguidance.LLMatcher.grammar_from_json_schema(schema))
        if params.regex is not None:
            return str(llguidance.LLMatcher.grammar_from_regex(params.regex))
        return str(llguidance.LLMatcher.grammar_from_lark(params.grammar))


class Matcher:
    """At one place of a grammar."""

    def mask(self) -> Any:
        """True where a token may come, shape [vocab_size]."""
        raise NotImplementedError

    def accept(self, token: int) -> None:
        """Go on."""
        raise NotImplementedError


class _XGrammar(Matcher):
    def __init__(self, compiled: Any, vocab_size: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._vocab_size = vocab_size

    def mask(self) -> Any:
        if self._matcher.is_terminated():
            return None
        self._bitmask.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._bitmask, 0)
        return _bits(self._bitmask[0], self._vocab_size)

    def accept(self, token: int) -> None:
        if not self._matcher.is_terminated():
            self._matcher.accept_token(token)


class _LLGuidance(Matcher):
    def __init__(self, tokenizer: Any, grammar: str, vocab_size: int) -> None:
        import llguidance

        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        if self._matcher.is_error():
            raise ValueError(f"LLGuidance matcher error: {self._matcher.get_error()}")
        self._vocab_size = vocab_size

    def mask(self) -> Any:
        import numpy as np
        import torch

        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        return _bits(torch.from_numpy(bits.copy()), self._vocab_size)

    def accept(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.try_consume_tokens([token])


def _bits(words: Any, vocab_size: int) -> Any:
    import torch

    spread = (words.view(-1, 1) >> torch.arange(32, dtype=torch.int32)) & 1
    return spread.view(-1)[:vocab_size].bool()
