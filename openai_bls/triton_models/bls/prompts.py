"""Clients of `preprocessing` by BLS: of ours, and of any other that has the official tensors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from openai_bls.core import word_lists
from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import EngineError, InvalidRequestError, OverloadedError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.transport.ipc.prompts import encode_request
from openai_bls.transport.model_calls import (
    Array,
    Arrays,
    ModelCallError,
    ModelCalls,
    ModelTimeoutError,
    ModelUnavailableError,
)
from openai_bls.triton_models import stub_process
from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder, word_forms

logger = logging.getLogger(__name__)

RELOAD_WAIT_S = 5.0
"""Seconds a request waits for a model that is being reloaded."""
_RETRY_S = 0.1  # between two attempts
# Threads that render chat templates.
_RENDER_THREADS = 2

_FAILED = "The prompt could not be prepared; see the server's log."


class BlsPromptClient:
    """Has prompts prepared whole, by a `preprocessing` that takes a `PromptRequest` as ours does.

    Args:
        model: declaration of the model.
        calls: calls of models by BLS.
        timeout_s: seconds until a call must be answered.
    """

    def __init__(self, model: PreprocessingModel, calls: ModelCalls, timeout_s: float) -> None:
        self._model = model
        self._calls = calls
        self._timeout_s = timeout_s
        self._closed = False

    @property
    def connected(self) -> bool:
        """True: there is no connection, and whether the model is there shows at a call."""
        return not self._closed

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`.

        Raises:
            InvalidRequestError: the request holds a value that cannot be passed on.
            OverloadedError: preprocessing is not there.
            EngineError: it failed.
        """
        if request.chat_template:
            raise InvalidRequestError(
                "'chat_template' is not supported where preprocessing is called by BLS (preprocessing_transport).",
                param="chat_template",
                code="unsupported_parameter",
            )
        answer = await self._call(["PROMPT_RESULT"], PROMPT_REQUEST=[encode_request(request)])
        try:
            (payload,) = answer["PROMPT_RESULT"].reshape(-1).tolist()
            return msgspec.msgpack.decode(payload, type=PromptResult)
        except (ValueError, TypeError, msgspec.DecodeError) as error:
            raise self._bad_answer("PROMPT_RESULT", error) from None

    async def close(self) -> None:
        """Close the client: later requests are refused."""
        self._closed = True

    async def _call(self, outputs: Sequence[str], **texts: list[bytes]) -> Arrays:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELOAD_WAIT_S
        while True:
            try:
                inputs = self._model.inputs(**texts)
                return await self._calls.call(self._model.name, inputs, outputs, timeout_s=self._timeout_s)
            except ModelUnavailableError as error:
                if self._closed or loop.time() > deadline:
                    logger.warning("%s", error)
                    raise OverloadedError("The preprocessing model is not available.") from None
            except ModelTimeoutError as error:
                logger.warning("%s", error)
                raise OverloadedError("The preprocessing model does not answer.") from None
            except ModelCallError as error:
                logger.error("%s", error)
                raise EngineError(_FAILED) from None
            await asyncio.sleep(_RETRY_S)

    def _bad_answer(self, tensor: str, reason: object) -> EngineError:
        logger.error("the model '%s' has given a bad answer: %s %s", self._model.name, tensor, reason)
        return EngineError(_FAILED)


class OfficialPromptClient(BlsPromptClient):
    """Has texts tokenized by a `preprocessing` with the official tensors; chat templates are rendered here.

    Args:
        model: declaration of the model.
        calls: calls of models by BLS.
        timeout_s: seconds until a call must be answered.
        tokenizer_dir: the engine's tokenizer, with its chat template.
        vocab_size: size of the engine's vocabulary, known once the engine is there.
    """

    def __init__(
        self,
        model: PreprocessingModel,
        calls: ModelCalls,
        timeout_s: float,
        tokenizer_dir: Path,
        vocab_size: Callable[[], int],
    ) -> None:
        super().__init__(model, calls, timeout_s)
        self._vocab_size = vocab_size
        self._threads = FairExecutor(_RENDER_THREADS, "chat-template")
        self._encoder = asyncio.wrap_future(self._threads.submit("", partial(_load, tokenizer_dir)))

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`; raises as `BlsPromptClient.prepare` does."""
        encoder = await self._loaded()
        texts, special = request.prompts or [], request.add_special_tokens
        if request.messages is not None:
            rendering = asyncio.wrap_future(self._threads.submit(request.key, partial(encoder.render, request)))
            # Templates write their own special tokens.
            texts, special = [await rendering], special is True
        prompts = await asyncio.gather(*(self._tokenize(text, special, encoder) for text in texts))
        prediction: list[int] = []
        if request.prediction:
            prediction = await self._tokenize(request.prediction, False, encoder)
        return PromptResult(list(prompts), await self._bad_words(request.bad_words), prediction)

    async def close(self) -> None:
        """Close the client: later requests are refused."""
        await super().close()
        self._threads.close()
        if self._encoder.done() and not self._encoder.cancelled() and self._encoder.exception() is None:
            self._encoder.result().close()

    async def _loaded(self) -> PromptEncoder:
        try:
            # Cancelling a request leaves it as it is.
            return await asyncio.shield(self._encoder)
        except (ImportError, OSError, ValueError) as error:
            logger.error("no usable tokenizer for the chat template: %s", error)
            raise EngineError(_FAILED) from None

    async def _tokenize(self, text: str, special: bool | None, encoder: PromptEncoder) -> list[int]:
        """Token ids of a text.

        Args:
            text: text to tokenize.
            special: whether the tokenizer's own special tokens are around the text; None leaves it to preprocessing.
            encoder: encoder that knows these tokens.
        """
        length = "REQUEST_INPUT_LEN"
        outputs = ["INPUT_ID", length] if self._model.declares(length) else ["INPUT_ID"]
        answer = await self._call(outputs, QUERY=[_utf8(text)])
        ids = self._ids(answer, "INPUT_ID", 1)
        if length in answer:
            found = answer[length].reshape(-1).tolist()
            if len(found) != 1 or not isinstance(found[0], int) or not 0 <= found[0] <= len(ids):
                raise self._bad_answer(length, f"is {found} beside an INPUT_ID of {len(ids)}")
            # Beyond it is padding.
            ids = ids[: found[0]]
        prompt: list[int] = ids.tolist()
        self._check_vocabulary("INPUT_ID", prompt)
        return prompt if special is None else _with_special_tokens(prompt, text, encoder, wanted=special)

    async def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        forms = word_forms(words)
        if not forms:
            return []
        if not self._model.declares("BAD_WORDS_DICT", "BAD_WORDS_IDS"):
            raise self._unsupported()
        answer = await self._call(["BAD_WORDS_IDS"], QUERY=[b"."], BAD_WORDS_DICT=[_utf8(form) for form in forms])
        try:
            found = word_lists.decode(self._ids(answer, "BAD_WORDS_IDS", 2), "BAD_WORDS_IDS")
        except InvalidRequestError as error:
            raise self._bad_answer("BAD_WORDS_IDS", error) from None
        for word in found:
            self._check_vocabulary("BAD_WORDS_IDS", word)
        if len(found) != len(forms):
            # The oldest official ones read a single text with commas between the words.
            logger.error("the model '%s' made %d token sequences of %d words", self._model.name, len(found), len(forms))
            raise self._unsupported()
        return [list(word) for word in found]

    def _ids(self, answer: Arrays, name: str, dimensions: int) -> Array:
        array = answer[name]
        # The batch, of one.
        while array.ndim > dimensions and len(array) == 1:
            array = array[0]
        if array.dtype.kind not in "iu" or array.ndim != dimensions:
            raise self._bad_answer(name, f"is {array.dtype} of shape {list(array.shape)}")
        return array

    def _check_vocabulary(self, name: str, ids: Sequence[int]) -> None:
        """An id that the model has no embedding for would end the step of other requests too."""
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size()):
            raise self._bad_answer(name, f"holds ids outside the vocabulary of {self._vocab_size()}")

    def _unsupported(self) -> InvalidRequestError:
        return InvalidRequestError(
            "'bad_words' is not supported by the preprocessing of this model.",
            param="bad_words",
            code="unsupported_parameter",
        )


def _load(tokenizer_dir: Path) -> PromptEncoder:
    stub_process.keep_torch_out()
    return PromptEncoder(tokenizer_dir)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"The request holds a value that cannot be passed on: {error}") from None


def _leading(sequence: Sequence[int] | str, part: Sequence[int] | str) -> int:
    """Number of times that `sequence` has `part` at its beginning."""
    size, times = len(part), 0
    while size and sequence[times * size : (times + 1) * size] == part:
        times += 1
    return times


def _with_special_tokens(ids: list[int], text: str, encoder: PromptEncoder, *, wanted: bool) -> list[int]:
    """`ids` of `text` with or without the special tokens that its tokenizer adds by itself.

    Whether preprocessing has added them is seen by their number: the text may begin with one of its own.
    """
    before, after = encoder.special_tokens
    if before:
        added = _leading(ids, before) > _leading(text, encoder.decode(before))
        ids = ids[len(before) :] if added and not wanted else before + ids if wanted and not added else ids
    if after:
        added = _leading(ids[::-1], after[::-1]) > _leading(text[::-1], encoder.decode(after)[::-1])
        ids = ids[: -len(after)] if added and not wanted else ids + after if wanted and not added else ids
    return ids
