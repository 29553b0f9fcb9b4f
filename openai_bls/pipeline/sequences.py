"""The sequences of a request, made once its prompts are there."""

from __future__ import annotations

from typing import NamedTuple

from openai_bls.api.chat.validation import ValidRequest
from openai_bls.core.engine_types import Grammar
from openai_bls.output.events import OutputParser
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.pipeline import prepare
from openai_bls.pipeline.model_registry import Target
from openai_bls.pipeline.sequence import Echo, Sequence, Writer


class Prepared(NamedTuple):
    """A request whose prompts are known."""

    request: ValidRequest
    target: Target
    prompts: list[list[int]]
    """Token ids, one list for each prompt."""
    bad_words: list[list[int]]
    tail: str
    """Of the (first) rendered prompt."""
    constraint: Grammar | None


def make(prepared: Prepared, writer: Writer) -> list[Sequence]:
    """All sequences of a request; those of a prompt follow each other.

    Raises:
        InvalidRequestError: a sampling parameter that the engine does not honour.
    """
    request = prepared.request
    result: list[Sequence] = []
    for at, prompt in enumerate(prepared.prompts):
        echo = _echo(prepared, at) if request.echo else None
        for _ in range(request.candidates):
            result.append(_sequence(prepared, writer, len(result), prompt, echo))
    return result


def _sequence(prepared: Prepared, writer: Writer, index: int, prompt: list[int], echo: Echo | None) -> Sequence:
    request, target = prepared.request, prepared.target
    tools = request.tools
    parser: OutputParser | None = None
    reasoning_open = False
    kept: frozenset[str] = frozenset()
    if request.endpoint == "chat.completions":
        formats = target.model.formats
        kept = formats.kept_special(tools is not None)
        reasoning_open = formats.reasoning is not None and formats.reasoning.opened_by(prepared.tail)
        parser = formats.parser(
            tools=tools.offered if tools is not None else None,
            reasoning_open=reasoning_open,
            tool_format=prepare.tool_format(request, target.model),
        )
    stops = None
    if request.stop:
        stops = StopMatcher(request.stop, include_stop_str_in_output=request.include_stop_str_in_output)
    return Sequence(
        index,
        prepare.generation_request(request, target, index, prompt, prepared.bad_words, prepared.constraint),
        target.model.detokenizers.new(
            skip_special_tokens=request.skip_special_tokens, prompt_token_ids=prompt, keep_special=kept
        ),
        writer,
        stops=stops,
        parser=parser,
        reasoning_open=reasoning_open,
        include_reasoning=request.include_reasoning,
        parallel_tool_calls=request.parallel_tool_calls,
        named_tool=tools is not None and tools.name is not None,
        echo=echo,
    )


def _echo(prepared: Prepared, at: int) -> Echo:
    """Of the prompt number `at`: as it was given, or its tokens where they count."""
    request = prepared.request
    texts = request.prompt.prompts if request.prompt is not None else None
    if texts and request.logprobs is None and request.truncate_prompt_tokens is None:
        return Echo(texts[at])
    # Special tokens of a text are the tokenizer's additions, those among ids the client's own.
    detokenizer = prepared.target.model.detokenizers.new(skip_special_tokens=bool(texts))
    return Echo.decoded(prepared.prompts[at], detokenizer)
