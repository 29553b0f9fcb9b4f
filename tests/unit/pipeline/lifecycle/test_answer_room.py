"""Room of collected answers: never overfull, and what one key fills is neither another's loss nor a small answer's."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.pipeline.lifecycle.answer_room import FREE_BYTES, AnswerRoom, CollectedAnswer

LIMIT = 20 * FREE_BYTES
KEYS = "abc"


@dataclass(eq=False)
class Request:
    """A request whose answer is collected; its work is itself."""

    key: str
    errors: list[ApiError] = field(default_factory=list)

    @property
    def work(self) -> Request:
        return self

    def fail(self, error: ApiError) -> None:
        self.errors.append(error)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(KEYS), st.integers(0, LIMIT * 5 // 4)),
        st.tuples(st.just("grow"), st.integers(0, 50), st.integers(0, LIMIT // 2)),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


def counted(answers: list[CollectedAnswer]) -> int:
    return sum(answer.size for answer in answers if answer.size > FREE_BYTES)


@given(STEPS)
def test_the_largest_answer_of_the_fullest_key_makes_room(steps: list[tuple[str, object, int]]) -> None:
    room = AnswerRoom(LIMIT)
    live: list[CollectedAnswer] = []
    requests: dict[CollectedAnswer, Request] = {}
    for kind, which, size in steps:
        if kind == "begin":
            answer = room.enter(request := Request(str(which)), "n")
            requests[answer] = request
            live.append(answer)
        elif not live:
            continue
        else:
            assert isinstance(which, int)
            answer = live[which % len(live)]
        if kind == "end":
            answer.end()
            live.remove(answer)
        else:
            answer.add(size)
        ended = [each for each in live if requests[each].errors]
        left = [each for each in live if each not in ended]
        for each in ended:
            (error,) = requests[each].errors
            own = counted([other for other in live if other.request.key == each.request.key])
            for key in KEYS:
                others = [other for other in left if other.request.key == key]
                # Of its key none that is left is larger, and no other key has more.
                assert key != each.request.key or all(other.size <= each.size for other in others)
                assert counted(others) <= own
            # Its key had more than its share.
            keys = {other.request.key for other in live if other.size > FREE_BYTES}
            assert own * len(keys) > LIMIT
            if each.size > LIMIT:
                assert isinstance(error, InvalidRequestError)
                assert (error.param, error.code) == ("n", "answer_too_large")
            else:
                assert isinstance(error, OverloadedError)
                assert (error.param, error.code) == (None, "server_overloaded")
            each.add(LIMIT)  # what still comes of it counts no more
        live = left
        assert room.held == counted(live) <= LIMIT
    for answer in live:
        answer.end()
        answer.end()
    assert (room.held, room._of_keys) == (0, {})


def test_small_answers_are_free() -> None:
    room = AnswerRoom(FREE_BYTES)
    requests = [Request("a") for _ in range(50)]
    for request in requests:
        room.enter(request, "n").add(FREE_BYTES)
    assert room.held == 0
    assert not any(request.errors for request in requests)
