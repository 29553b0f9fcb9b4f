"""Requests with images through the engine core's client, over a processor of vLLM that a test holds back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.engines.capabilities import refusal
from openai_bls_vllm.clients.core_client import CoreClient
from openai_bls_vllm.interface import Generation, Listeners
from openai_bls_vllm.module import Vllm
from tests_vllm.engine.vllm_support import INFO, asked

PIXELS = Image(2, 1, bytes(6), "a1")


class Processor:
    """`InputProcessor`: an image is three tokens of 9; what it is asked for waits for `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.error: Exception | None = None
        self.prompts: list[dict[str, Any]] = []
        self.forgotten = 0
        """Calls that cleared the cache of images that were sent."""
        self.renderer = SimpleNamespace(shutdown=lambda: None, clear_mm_cache=self._clear)

    def _clear(self) -> None:
        self.forgotten += 1

    def process_inputs(self, request_id: str, prompt: dict[str, Any], params: Any, supported_tasks: Any) -> Any:
        assert self.go.wait(60)
        self.prompts.append(prompt)
        if self.error is not None:
            raise self.error
        ids = [token for one in prompt["prompt_token_ids"] for token in ([9] * 3 if one == 9 else [one])]
        return SimpleNamespace(prompt_token_ids=ids, mm_features=[f"features of {request_id}"])


class Core:
    """vLLM's client of the engine core; keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.steps: asyncio.Queue[Any] = asyncio.Queue()

    async def add_request_async(self, request: Any) -> None:
        self.sent.append(("add", request))

    async def abort_requests_async(self, ids: list[str]) -> None:
        self.sent.append(("abort", ids))

    async def get_output_async(self) -> Any:
        return await self.steps.get()

    def step(self, *outputs: Any) -> None:
        """Answer with a step's outputs."""
        self.steps.put_nowait(SimpleNamespace(outputs=outputs, scheduler_stats=None))

    def shutdown(self) -> None:
        pass


def sampling_params(*, temperature: float = 1.0, **_: Any) -> Any:
    if temperature < 0:
        raise ValueError("temperature must be non-negative")
    return SimpleNamespace(structured_outputs=None)


class Made:
    """A client over both, and what it told."""

    def __init__(self) -> None:
        self.processor, self.core = Processor(), Core()
        names: dict[str, Any] = {
            "InputProcessor": lambda _: self.processor,
            "EngineCoreRequest": SimpleNamespace,
            "EngineCoreClient": SimpleNamespace(make_async_mp_client=lambda **_: self.core),
            "Executor": SimpleNamespace(get_class=lambda _: None),
            "RequestOutputKind": SimpleNamespace(DELTA=1),
            "SamplingParams": sampling_params,
        }
        vllm = SimpleNamespace(name=lambda path: names.get(path.rpartition(".")[2], SimpleNamespace))
        config = SimpleNamespace(structured_outputs_config=None)
        self.client = CoreClient(cast("Vllm", vllm), config, images=True)
        self.refused: list[tuple[str, str]] = []
        self.outputs: list[Any] = []
        self.client.start(
            Listeners(
                lambda outputs, _: self.outputs.extend(outputs),
                lambda key, problem: self.refused.append((key, problem)),
                lambda error: pytest.fail(str(error)),
            )
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the event loop run until something is so."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)


def generation(key: str, *, expanded: int = 3, owner: str = "") -> Generation:
    media = MediaPrompt((PIXELS,), "<image>?", (9, 5))
    return Generation(key, [9] * expanded + [5], {}, media=media, owner=owner)


def run(test: Callable[[Made], Awaitable[None]]) -> Made:
    made: list[Made] = []

    async def with_client() -> None:
        made.append(Made())
        await test(made[0])
        made[0].client.shutdown()

    asyncio.run(with_client())
    return made[0]


def test_images_of_api_keys_are_processed_in_turn() -> None:
    async def test(made: Made) -> None:
        made.client.add([*(generation(key, owner="alice") for key in "1234"), generation("5", owner="bob")])
        made.processor.go.set()
        await made.until(lambda: len(made.core.sent) == 5)

    assert [request.request_id for _, request in run(test).core.sent] == ["1", "5", "2", "3", "4"]


def test_text_passes_images_that_wait_and_images_keep_their_order() -> None:
    async def test(made: Made) -> None:
        made.client.add([generation("1"), generation("2"), Generation("3", [5], {})])
        await made.until(lambda: len(made.core.sent) == 1)
        made.processor.go.set()
        await made.until(lambda: len(made.core.sent) == 3)

    sent = [request for _, request in run(test).core.sent]
    assert [(one.request_id, one.prompt_token_ids) for one in sent] == [
        ("3", [5]), ("1", [9, 9, 9, 5]), ("2", [9, 9, 9, 5])
    ]  # fmt: skip
    assert [one.mm_features for one in sent] == [None, ["features of 1"], ["features of 2"]]


def test_images_go_as_pixels_with_their_hash() -> None:
    async def test(made: Made) -> None:
        made.processor.go.set()
        made.client.add([generation("1")])
        await made.until(lambda: bool(made.core.sent))

    (prompt,) = run(test).processor.prompts
    (image,) = prompt["multi_modal_data"]["image"]
    assert (image.size, image.tobytes()) == ((2, 1), PIXELS.pixels)
    assert prompt["multi_modal_uuids"] == {"image": ["a1"]}
    assert prompt["prompt_token_ids"] == [9, 5]


def test_an_abort_meanwhile_reaches_vllm_after_the_request() -> None:
    async def test(made: Made) -> None:
        made.client.add([generation("1")])
        made.client.abort(["1"])
        made.processor.go.set()
        await made.until(lambda: len(made.core.sent) == 2)

    (add, request), (abort, ids) = run(test).core.sent
    assert (add, request.request_id, abort, ids) == ("add", "1", "abort", ["1"])


def test_another_expansion_than_was_counted_is_an_error_and_not_generated() -> None:
    async def test(made: Made) -> None:
        made.processor.go.set()
        made.client.add([generation("1", expanded=4)])
        await made.until(lambda: len(made.core.sent) == 2)

    made = run(test)
    assert [what for what, _ in made.core.sent] == ["add", "abort"]
    assert [(one.request_id, one.finish_reason) for one in made.outputs] == [("1", "error")]


@pytest.mark.parametrize(("error", "refused"), [(ValueError("too narrow"), True), (RuntimeError("broken"), False)])
def test_what_the_processor_does_not_take_ends_that_request_alone(error: Exception, refused: bool) -> None:
    async def test(made: Made) -> None:
        made.processor.error = error
        made.processor.go.set()
        made.client.add([generation("1")])
        await made.until(lambda: bool(made.refused or made.outputs))
        made.processor.error = None
        made.client.add([generation("2")])
        await made.until(lambda: len(made.core.sent) == 1)

    made = run(test)
    # Those of its images that were processed are sent again when they come next.
    assert made.processor.forgotten == 1
    assert made.refused == ([("1", "too narrow")] if refused else [])
    assert [(one.request_id, one.finish_reason) for one in made.outputs] == ([] if refused else [("1", "error")])


def missed(key: str) -> Any:
    """Answer of an engine core whose cache lacks an image of the request."""
    return SimpleNamespace(request_id=key, new_token_ids=[], finish_reason="error", mm_cache_miss_hashes=["a1"])


def test_images_that_the_engine_core_has_forgotten_are_sent_once_more() -> None:
    async def test(made: Made) -> None:
        made.processor.go.set()
        made.client.add([generation("1")])
        await made.until(lambda: len(made.core.sent) == 1)
        made.core.step(missed("1"))
        await made.until(lambda: len(made.core.sent) == 2)
        assert not made.outputs
        made.core.step(SimpleNamespace(request_id="1", new_token_ids=[7], finish_reason=None))
        await made.until(lambda: len(made.outputs) == 1)
        # It is no more among those whose images may be missed.
        made.core.step(missed("1"))
        await made.until(lambda: len(made.outputs) == 2)

    made = run(test)
    assert [(what, request.request_id) for what, request in made.core.sent] == [("add", "1"), ("add", "1")]
    assert made.processor.forgotten == 1
    assert made.outputs[0].new_token_ids == [7]


def test_images_that_are_forgotten_twice_are_an_error() -> None:
    async def test(made: Made) -> None:
        made.processor.go.set()
        made.client.add([generation("1")])
        for count in (1, 2):
            await made.until(lambda: len(made.core.sent) == count)  # noqa: B023 - called in this turn.
            made.core.step(missed("1"))
        await made.until(lambda: bool(made.outputs))

    made = run(test)
    assert [(one.request_id, one.finish_reason) for one in made.outputs] == [("1", "error")]


def test_a_request_that_was_aborted_is_not_sent_again() -> None:
    async def test(made: Made) -> None:
        made.processor.go.set()
        made.client.add([generation("1")])
        await made.until(lambda: len(made.core.sent) == 1)
        made.client.abort(["1"])
        await made.until(lambda: len(made.core.sent) == 2)
        made.core.step(missed("1"))
        await made.until(lambda: bool(made.outputs))

    assert [what for what, _ in run(test).core.sent] == ["add", "abort"]


def test_what_vllm_refuses_is_refused_before_its_images_are_processed() -> None:
    """Else vLLM would hold them for sent."""

    async def test(made: Made) -> None:
        made.processor.go.set()
        refused = msgspec.structs.replace(generation("1"), params={"temperature": -1.0})
        made.client.add([refused, generation("2")])
        await made.until(lambda: len(made.core.sent) == 1)

    made = run(test)
    assert [key for key, _ in made.refused] == ["1"]
    assert len(made.processor.prompts) == 1


def test_more_images_than_the_model_takes_are_refused() -> None:
    media = MediaPrompt((PIXELS, PIXELS), "", (9, 9))
    request = asked(media=media)
    assert "at most 1" in (refusal(request, one_image()) or "")
    assert refusal(request, INFO) is not None


def one_image() -> EngineInfo:
    return msgspec.structs.replace(INFO, max_images=1, supported=(*INFO.supported, "media"))
