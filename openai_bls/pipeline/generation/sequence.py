"""Sequence of a request: takes the engine's token deltas and calls the writer with events.

Everything here runs on the event loop's thread, once per delta, with no await, task or lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest, Logprobs, TokenDelta
from openai_bls.core.errors import EngineError, engine_failure
from openai_bls.core.logprobs import LogprobTrack, TokenLogprob
from openai_bls.core.usage import FinishReason
from openai_bls.output.answer_stops import AnswerStops
from openai_bls.output.detokenizer.factory import Detokenizer
from openai_bls.output.events import OutputParser
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.output.stops import Marks
from openai_bls.pipeline.generation.sequence_state import SequenceState
from openai_bls.pipeline.generation.writer import EventWriter, SequenceOwner, Writer

logger = logging.getLogger(__name__)


class Sequence(SequenceState):
    """One sequence of a request: one prompt's one choice.

    Args:
        index: index of the choice.
        request: request to the engine.
        detokenizer: detokenizer of the new tokens.
        writer: receiver of the events.
        stops: matcher of stop strings in all of the text; None if there are none, or `parser` has them.
        marks: marks of special tokens in the detokenizer's text, which are for stop strings alone; None if it has none.
        parser: parser of reasoning and tool calls; None if the text has neither.
        reasoning_open: the text begins within reasoning.
        include_reasoning: whether reasoning is passed on to the writer.
        parallel_tool_calls: whether more than one tool call is allowed; else the sequence ends before the second.
        forced: the answer is tool calls alone: text that is none, of a call that is cut for example, is dropped.
        named_tool: the client has named the function: the end is a "stop", as OpenAI has it.
        custom_tools: names of the custom tools, of whose calls the writer gets the input instead of the arguments.
        refusable_param: field that the engine may refuse by itself: an image, or where the grammar comes from.
    """

    __slots__ = (
        "_answer_stops",
        "_began",
        "_decoded",
        "_detokenizer",
        "_events",
        "_marks",
        "_named_tool",
        "_owner",
        "_parser",
        "_reasoning_open",
        "_refusable_param",
        "_sent",
        "_stops",
        "_track",
        "_writer",
    )

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        detokenizer: Detokenizer,
        writer: Writer,
        *,
        stops: StopMatcher | None = None,
        marks: Marks | None = None,
        parser: OutputParser | None = None,
        reasoning_open: bool = False,
        include_reasoning: bool = True,
        parallel_tool_calls: bool = True,
        forced: bool = False,
        named_tool: bool = False,
        custom_tools: Collection[str] = (),
        refusable_param: str | None = None,
    ) -> None:
        super().__init__(index, request, custom_tools)
        self._began = False
        self._detokenizer = detokenizer
        self._writer = writer
        self._events = EventWriter(
            writer,
            include_reasoning=include_reasoning,
            parallel_tool_calls=parallel_tool_calls,
            forced=forced,
            custom_tools=custom_tools,
        )
        self._stops = stops
        self._marks = marks
        self._parser = parser
        self._answer_stops = parser if isinstance(parser, AnswerStops) else None
        self._reasoning_open = reasoning_open
        self._refusable_param = refusable_param
        self._named_tool = named_tool
        self._track = LogprobTrack() if request.logprobs is not None else None
        # Characters decoded, and characters past the stop strings: they differ by what is held back.
        self._decoded = self._sent = 0
        self._owner: SequenceOwner | None = None

    def start(self, owner: SequenceOwner) -> None:
        """Attach to `owner`."""
        self._owner = owner

    def leave(self) -> None:
        """Detach from the owner, which has ended."""
        self._owner = None

    def on_delta(self, delta: TokenDelta) -> None:
        """Take a delta from the engine; no exception leaves this."""
        owner = self._owner
        if owner is None:
            return
        try:
            if len(delta.token_ids) > 1 and self._may_end_anywhere:
                # The answer may end with any of them, and what comes after is not counted.
                for part in _single_tokens(delta):
                    if self.finish_reason is None:
                        self._take(owner, part)
            else:
                self._take(owner, delta)
        except Exception:
            self._fail(owner)

    def _fail(self, owner: SequenceOwner) -> None:
        """End the request after an exception, which is being handled."""
        logger.exception("a request failed")
        owner.fail(EngineError("The server had an error; see its log."))

    @property
    def _may_end_anywhere(self) -> bool:
        return self._stops is not None or self._answer_stops is not None or self._events.one_call

    def _take(self, owner: SequenceOwner, delta: TokenDelta) -> None:
        reason = delta.finish_reason
        if reason is not None:
            # Cancelled, but not by this request's client, who is listened to no more: the engine is going away.
            failure = engine_failure(delta, cancelled="The engine is shutting down.")
            if failure is not None:
                if delta.invalid:
                    failure.param = self._refusable_param
                    if self.request.media is not None:
                        failure.code = "invalid_image"
                owner.fail(failure)
                return
            self.kv_transfer_params = delta.kv_transfer_params
            self.num_draft_tokens, self.num_accepted_tokens = delta.num_draft_tokens, delta.num_accepted_tokens
        count = len(delta.token_ids)
        if not self._began:
            self._begin(owner, delta)
        if delta.cached_tokens:
            self.cached_tokens = delta.cached_tokens
        self.predicted_tokens += delta.predicted_tokens
        if self._reasoning_open:
            self.reasoning_tokens += count
        # The stop token was sampled like any other, although it is not delivered.
        self.completion_tokens += count + (delta.stop_token_id is not None)
        text = self._detokenizer.push(delta.token_ids) if self._track is None else self._push_tracked(delta)
        if self._answer_stops is not None:
            self._take_answer(owner, self._answer_stops, text, reason, delta.stop_token_id)
            return
        if reason is None and self._stops is None and self._track is None:
            # Nearly every delta.
            if text and self._emit(text):
                self._stop(owner)
            return
        self._take_text(owner, text, reason, delta.stop_token_id)

    def _begin(self, owner: SequenceOwner, delta: TokenDelta) -> None:
        """Tell the request of its first token, and of a prompt that has been read."""
        if owner.first_token_at is None:
            owner.engine_queue_s = delta.queue_s
            if delta.token_ids:
                owner.first_token_at = time.monotonic()
        if delta.token_ids or delta.finish_reason is not None:
            self._began = True
            owner.sequence_began()

    def _take_text(
        self, owner: SequenceOwner, text: str, reason: EngineFinishReason | None, stop_token_id: int | None
    ) -> None:
        """Pass new text on; end the sequence at a stop string or at `reason`."""
        if reason is not None:
            text += self._detokenizer.finish()
        stopped = False
        if self._stops is not None:
            text = self._up_to_a_stop(self._stops, text, ended=reason is not None, stop_token_id=stop_token_id)
            stopped = self.matched_stop is not None
        if self._track is not None:
            self._write_logprobs(self._track, text, whole=reason is not None and not stopped)
        if text:
            stopped = self._emit(text) or stopped
        if stopped and reason is None:
            self._stop(owner)
        elif reason is not None:
            self._end(owner, "length" if reason == "length" and not stopped else "stop")

    def _take_answer(
        self,
        owner: SequenceOwner,
        stops: AnswerStops,
        text: str,
        reason: EngineFinishReason | None,
        stop_token_id: int | None,
    ) -> None:
        """Pass new text on where stop strings end the answer alone: only its events tell what they cut off."""
        if reason is not None:
            text += self._detokenizer.finish()
        events = stops.push(text)
        if reason is not None and stops.matched is None:
            end = "" if self._marks is None else self._marks.of(stop_token_id)
            events += stops.finish(cut=reason == "length", end=end)
        # An output that has ended by itself with that token is not cut.
        ended = self._marks is not None and self._marks.is_token(stops.matched, stop_token_id)
        self.matched_stop = None if ended else stops.matched
        if self._track is not None:
            whole = reason is not None and stops.matched is None
            self._send_logprobs(self._track.take_all() if whole else self._track.take(stops.passed))
        stopped = self._events.write(self, events)
        self._reasoning_open = stops.reasoning_open
        if stopped or reason is not None:
            self._parser = None
        if reason is not None:
            self._end(owner, "length" if reason == "length" and not stopped else "stop")
        elif stopped:
            self._stop(owner)

    def _up_to_a_stop(self, stops: StopMatcher, text: str, *, ended: bool, stop_token_id: int | None) -> str:
        """The text that may be passed on, and in `matched_stop` the stop string that was found."""
        if self._marks is None:
            text, self.matched_stop = stops.push(text)
            return text + stops.finish() if ended and self.matched_stop is None else text
        # The token that ended the output may be the last of a stop string, and is not text.
        end = self._marks.of(stop_token_id)
        text, self.matched_stop = stops.push(text + end)
        if ended and self.matched_stop is None:
            text = (text + stops.finish()).removesuffix(end)
        elif self._marks.is_token(self.matched_stop, stop_token_id):
            # The output has ended by itself, and nothing is cut.
            text, self.matched_stop = text.removesuffix(end), None
        return self._marks.visible(text)

    def _stop(self, owner: SequenceOwner) -> None:
        """End at a stop string and cancel the engine's work."""
        owner.cancel_sequence(self)
        self._end(owner, "stop")

    def _write_logprobs(self, track: LogprobTrack, text: str, *, whole: bool) -> None:
        """Write log-probabilities of the tokens that begin in `text`, sent next, or of all that are left if `whole`."""
        self._sent += len(text)
        self._send_logprobs(track.take_all() if whole else track.take(self._sent))

    def _send_logprobs(self, tokens: list[TokenLogprob]) -> None:
        # Not those of reasoning that is left out.
        if tokens and (self._events.include_reasoning or not self._reasoning_open):
            self._writer.logprobs(self, tokens)

    def _push_tracked(self, delta: TokenDelta) -> str:
        """Decode token by token, to know where each begins."""
        assert self._track is not None
        if delta.logprobs is None:
            if delta.token_ids:
                raise ValueError("the engine sent tokens without their log-probabilities")
            return ""
        pieces = []
        for place, token_id in enumerate(delta.token_ids):
            self._track.add(token_id, delta.logprobs, place, self._decoded)
            piece = self._detokenizer.push([token_id])
            self._decoded += len(piece if self._marks is None else self._marks.visible(piece))
            pieces.append(piece)
        return "".join(pieces)

    def _emit(self, text: str) -> bool:
        """Pass content on; True if the sequence is to stop here."""
        parser = self._parser
        if parser is None:
            self._writer.text(self, text)
            return False
        stopped = self._events.write(self, parser.push(text))
        self._reasoning_open = parser.reasoning_open
        if stopped:
            self._parser = None
        return stopped

    def _end(self, owner: SequenceOwner, reason: FinishReason) -> None:
        if self._parser is not None:
            self._events.write(self, self._parser.finish(cut=reason == "length" or self.matched_stop is not None))
        self._events.end_input(self)
        # A stop string in all of the text may have cut a call short.
        is_whole = self.matched_stop is None or self._answer_stops is not None
        if reason == "stop" and self._events.calls and not self._named_tool and is_whole:
            reason = "tool_calls"
        self.finish_reason = reason
        self._writer.finished(self, reason)
        owner.sequence_ended()


def _single_tokens(delta: TokenDelta) -> Iterator[TokenDelta]:
    """Deltas of one token each: the first has what comes once, the last has the end."""
    last = len(delta.token_ids) - 1
    found = delta.logprobs
    for i, token_id in enumerate(delta.token_ids):
        columns = found and Logprobs(
            found.token_logprobs[i : i + 1], found.top_token_ids[i : i + 1], found.top_logprobs[i : i + 1]
        )
        once = delta if i == 0 else _NOTHING
        end = delta if i == last else _NOTHING
        yield TokenDelta(
            delta.request_id,
            [token_id],
            end.finish_reason,
            end.stop_token_id,
            end.error,
            end.invalid,
            logprobs=columns,
            prompt_logprobs=once.prompt_logprobs,
            cached_tokens=once.cached_tokens,
            queue_s=once.queue_s,
            predicted_tokens=int(i < delta.predicted_tokens),
            kv_transfer_params=end.kv_transfer_params,
            num_draft_tokens=end.num_draft_tokens,
            num_accepted_tokens=end.num_accepted_tokens,
        )


_NOTHING = TokenDelta(0, [])
