"""Room of the answers that are collected whole, shared by API keys: what they become is not known before.

A key may fill what the others leave. Where there is no room left, the largest answer of the key that has most ends
with an error. So a key that has at most its share, the limit divided by the number of keys, loses nothing to others,
and a small answer nothing to a large one.
"""

from __future__ import annotations

from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.pipeline.lifecycle.life import Running

FREE_BYTES = 16 * 1024
"""Bytes of an answer that are not counted: nearly all answers have no more."""
_REMEDY = "Stream it, but not as a response, or ask for fewer choices, tokens or log-probabilities at a time."


class AnswerRoom:
    """Bytes of the answers of all keys, from their first event until their request ends. Belongs to the event loop.

    Args:
        limit: most bytes of all answers together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of_keys: dict[str, set[CollectedAnswer]] = {}
        self.held = 0
        """Bytes that are counted."""

    def enter(self, request: Running, param: str) -> CollectedAnswer:
        """The answer of a request, empty.

        Args:
            request: request whose work fails if there is no room.
            param: field of the request that makes its answer large.
        """
        return CollectedAnswer(self, request, param)

    def count(self, answer: CollectedAnswer, size: int) -> None:
        """Count `size` bytes more of an answer; end the largest one of the fullest key while there is no room."""
        self.held += size
        self._of_keys.setdefault(answer.request.key, set()).add(answer)
        while self.held > self._limit:
            fullest = max(self._of_keys.values(), key=lambda answers: sum(each.size for each in answers))
            largest = max(fullest, key=lambda each: each.size)
            error = self._error(largest)
            largest.end()
            if largest.request.work is not None:
                largest.request.work.fail(error)

    def leave(self, answer: CollectedAnswer) -> None:
        """Count an answer no more."""
        answers = self._of_keys.get(answer.request.key, set())
        if answer in answers:
            self.held -= answer.size
            answers.discard(answer)
            if not answers:
                del self._of_keys[answer.request.key]

    def _error(self, answer: CollectedAnswer) -> ApiError:
        if answer.size > self._limit:
            return InvalidRequestError(
                f"The answer has more than {self._limit} bytes (max_body_bytes_in_flight). {_REMEDY}",
                param=answer.param,
                code="answer_too_large",
            )
        return OverloadedError(
            "The server holds as many bytes of unfinished answers as it may, and this was the largest one of the API "
            f"key with most of them. {_REMEDY}"
        )


class CollectedAnswer:
    """Bytes of one answer that is collected.

    Args:
        room: room that they are of.
        request: see `AnswerRoom.enter`.
        param: see `AnswerRoom.enter`.
    """

    __slots__ = ("_ended", "_room", "param", "request", "size")

    def __init__(self, room: AnswerRoom, request: Running, param: str) -> None:
        self._room = room
        self._ended = False
        self.request = request
        self.param = param
        self.size = 0

    def add(self, size: int) -> None:
        """Count `size` bytes more; this answer or another may end by it. Nothing counts after the end."""
        if self._ended:
            return
        before, self.size = self.size, self.size + size
        if self.size > FREE_BYTES:
            self._room.count(self, size if before > FREE_BYTES else self.size)

    def end(self) -> None:
        """Count nothing of it any more. Harmless if done again."""
        self._ended = True
        self._room.leave(self)
