"""Script of the null engine: turns of text that it plays, chosen by what the prompt says.

A file of JSON: `{"turns": [{"when": ["greet.py"], "counts": {"</tool_response>": 1}, "text": "Done."}, …]}`. The first
turn whose conditions the prompt meets is played. The last one has no conditions, so that every prompt has a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.manifest import EngineLoadError, Milliseconds, Positive
from openai_bls.engines.grammars.matcher import ConstraintFactory
from openai_bls.engines.null.constrained import constrained
from openai_bls.engines.null.sequence import Output, ended

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens that end what is open in JSON and in markup, for a model with nothing more to say.
_CLOSING = ('"', "}", "]", ">")


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer, and the prompts that it is for."""

    text: str
    """Output before the end token; special tokens stand in it as their text."""
    when: tuple[str, ...] = ()
    """Texts that the prompt contains, all of them."""
    counts: dict[str, int] = {}
    """Text → how often the prompt contains it."""
    first_token_delay_ms: Milliseconds = 0.0
    """Silence before the first token."""
    tokens_per_step: Positive = 1
    """Tokens that one step brings."""

    def answers(self, prompt: str) -> bool:
        """True if `prompt` meets the conditions."""
        return all(text in prompt for text in self.when) and all(
            prompt.count(text) == count for text, count in self.counts.items()
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a script."""

    turns: tuple[Turn, ...]


class Script:
    """Player of the turns.

    Args:
        turns: the turns; the last one has no conditions.
        tokenizer: tokenizer of the checkpoint.
        info: capabilities and limits of the engine.
        grammars: compiler of grammars; None without any.
    """

    def __init__(
        self, turns: Sequence[Turn], tokenizer: Tokenizer, info: EngineInfo, grammars: ConstraintFactory | None
    ) -> None:
        self._tokenizer = tokenizer
        self._turns = [(turn, tokenizer.encode(turn.text, add_special_tokens=False).ids) for turn in turns]
        self._info = info
        self._grammars = grammars
        self._closing = [found for text in _CLOSING if (found := tokenizer.token_to_id(text)) is not None]

    def output_of(self, request: GenerationRequest) -> Output:
        """The output of the turn that is for the request's prompt.

        Raises:
            GrammarError: the request's grammar cannot be compiled, or not be followed.
        """
        prompt = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        turn, token_ids = next(found for found in self._turns if found[0].answers(prompt))
        if request.grammar is not None and self._grammars is not None:
            constraint = self._grammars.make(request.grammar, request.stop_token_ids)
            output = constrained(token_ids, constraint, request, self._info.vocab_size, self._closing)
        else:
            output = ended(token_ids, request, self._info)
            if request.min_tokens:
                output.go_on_to(request.min_tokens, request, self._info)
        output.apply_stops(request)
        output.first_token_delay_ms, output.tokens_per_step = turn.first_token_delay_ms, turn.tokens_per_step
        return output


def load(path: Path, tokenizer_dir: Path, info: EngineInfo, grammars: ConstraintFactory | None) -> Script:
    """Read a script.

    Args:
        path: the file.
        tokenizer_dir: folder with the tokenizer.json of the checkpoint.
        info: capabilities and limits of the engine.
        grammars: compiler of grammars; None without any.

    Raises:
        EngineLoadError: the file cannot be read or is no script, or there is no tokenizer.
    """
    try:
        turns = msgspec.json.decode(path.read_bytes(), type=_File).turns
    except OSError as error:
        raise EngineLoadError(f"the null engine's script {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineLoadError(f"the null engine's script {path} is not readable: {error}") from None
    if not turns or turns[-1].when or turns[-1].counts:
        raise EngineLoadError(f"the last turn of the null engine's script {path} has conditions: it is for all prompts")
    return Script(turns, _tokenizer(tokenizer_dir), info, grammars)


def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise EngineLoadError("null_script needs an engine that was built from a checkpoint, whose tokenizer it takes")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises bare Exception
        raise EngineLoadError(f"{file} is not a tokenizer: {error}") from None
