"""Prompts with images in vLLM's terms, expanded by vLLM's own processor of the model."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import msgspec

from openai_bls.core.keys.turns import KeyQueue
from openai_bls_vllm.interface import Generation
from openai_bls_vllm.module import Vllm

INPUT_PROCESSOR = "vllm.v1.engine.input_processor.InputProcessor"


def prompt(generation: Generation) -> dict[str, Any]:
    """vLLM's `TokensPrompt` of a request with images; its token ids are those before the images are expanded.

    The uuids are the images' own hashes, by which vLLM's caches tell images apart without hashing them again.
    """
    # In vLLM's environment, which has it for its own processors.
    from PIL import Image

    media = generation.media
    assert media is not None
    return {
        "prompt_token_ids": list(media.token_ids),
        "multi_modal_data": {
            "image": [Image.frombuffer("RGB", (one.width, one.height), one.pixels) for one in media.images]
        },
        "multi_modal_uuids": {"image": [one.uuid for one in media.images]},
    }


def require_same(generation: Generation, expanded: list[int]) -> None:
    """Check that vLLM reads the prompt that was counted.

    Raises:
        RuntimeError: it expands the images otherwise than `preprocessing`.
    """
    if expanded != generation.prompt_token_ids:
        raise RuntimeError(
            f"vLLM's processor makes {len(expanded)} tokens of this prompt and images, and the model's own in "
            f"preprocessing {len(generation.prompt_token_ids)}: they are not of the same version"
        )


class Expanded(msgspec.Struct):
    """A prompt as vLLM's engine core takes it."""

    prompt_token_ids: list[int]
    features: Any
    """List of `MultiModalFeatureSpec`."""


class MediaQueue:
    """Expands the prompts of requests one after the other, on the thread that vLLM has for this, the API keys in turn.

    One at a time: vLLM's cache of processed images sends an image once, so that what is expanded first
    must reach the engine core first, and whatever is expanded must reach it.

    Args:
        vllm: the installed package.
        config: `VllmConfig`.
        done: called on the event loop with each request and its prompt, or with the exception; also with those that
            were aborted meanwhile.
    """

    def __init__(self, vllm: Vllm, config: Any, done: Callable[[Generation, Expanded | BaseException], None]) -> None:
        self._processor = vllm.name(INPUT_PROCESSOR)(config)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "vllm-images")
        self._params = vllm.name("vllm.SamplingParams")
        self._done = done
        self._waiting: KeyQueue[Generation] = KeyQueue()
        self._task: asyncio.Task[None] | None = None

    def put(self, generation: Generation) -> None:
        """Take a request."""
        self._waiting.push(generation.owner, generation)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while (generation := self._waiting.pop()) is not None:
                try:
                    self._done(generation, await self._expand(generation))
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    self._done(generation, error)
        finally:
            self._task = None

    async def _expand(self, generation: Generation) -> Expanded:
        request = await asyncio.get_running_loop().run_in_executor(self._thread, self._process, generation)
        return Expanded(list(request.prompt_token_ids), request.mm_features)

    def _process(self, generation: Generation) -> Any:
        params = self._params(max_tokens=1)
        try:
            return self._processor.process_inputs(
                generation.request_id, prompt(generation), params, supported_tasks=("generate",)
            )
        except BaseException:
            # Of several images those before the one that failed were processed, and never reach the engine core.
            self._processor.renderer.clear_mm_cache()
            raise

    def forget(self) -> None:
        """Send all images to the engine core again when they come next: it may lack some that were processed.

        On the thread that processes them, as vLLM's cache is not for several.
        """
        self._thread.submit(self._processor.renderer.clear_mm_cache)

    def close(self) -> None:
        """End the threads."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._processor.renderer.shutdown()
