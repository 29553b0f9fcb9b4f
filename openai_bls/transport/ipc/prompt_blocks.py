"""Log-probabilities of prompts on the exchange: in blocks, ahead of the delta that has them.

Those of a long prompt are many megabytes. In one frame they would hold up the tokens of all other requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_bls.core.engine_types import GenerationRequest, PromptLogprobs, TokenDelta
from openai_bls.transport.ipc.frames import PromptBlock, ServerFrame


class _Upload:
    """Deltas of a request whose prompt has several blocks."""

    def __init__(self, first: TokenDelta, logprobs: PromptLogprobs) -> None:
        self.deltas = [first]
        self.logprobs = logprobs
        self.sent = 0
        """Blocks that have gone ahead."""


class BlockSender:
    """Blocks for the client of one connection. The requests take turns."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        """Ids of requests that want their prompts' log-probabilities and have not got them."""
        self._uploads: dict[int, _Upload] = {}
        """By request, the one whose turn is next first."""

    @property
    def waiting(self) -> bool:
        """True if there is a block to send."""
        return bool(self._uploads)

    def expect(self, requests: Sequence[GenerationRequest]) -> None:
        """Take note of requests that the engine is about to get."""
        self._asked.update(request.request_id for request in requests if request.prompt_logprobs is not None)

    def passed(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        """The deltas but those that go out later, behind blocks."""
        if not self._asked:
            # Nearly always.
            return deltas
        passed = []
        for delta in deltas:
            upload, logprobs = self._uploads.get(delta.request_id), delta.prompt_logprobs
            if upload is not None:
                upload.deltas.append(delta)
            elif logprobs is not None and len(logprobs.blocks) > 1:
                self._uploads[delta.request_id] = _Upload(delta, logprobs)
            else:
                self._asked.discard(delta.request_id)
                passed.append(delta)
        return passed

    def next(self) -> tuple[PromptBlock, list[TokenDelta]]:
        """The next block, and the deltas that follow it if it was the last but one: that one is in the first delta."""
        request_id = next(iter(self._uploads))
        upload = self._uploads.pop(request_id)
        top, blocks = upload.logprobs.top, upload.logprobs.blocks
        block = PromptBlock(request_id, blocks[upload.sent])
        upload.sent += 1
        if upload.sent < len(blocks) - 1:
            self._uploads[request_id] = upload
            return block, []
        self._asked.discard(request_id)
        first, *others = upload.deltas
        return block, [msgspec.structs.replace(first, prompt_logprobs=PromptLogprobs(top, blocks[-1:])), *others]


class BlockReceiver:
    """Puts log-probabilities of prompts together, for the client's end of one connection."""

    def __init__(self) -> None:
        self._ahead: dict[int, list[bytes]] = {}
        """Blocks that have come ahead, by request."""

    def deltas(self, frame: ServerFrame) -> list[TokenDelta]:
        """The deltas of a frame, with the blocks that came ahead; keeps what belongs to a later one."""
        if frame.block is not None:
            self._ahead.setdefault(frame.block.request_id, []).append(frame.block.data)
        return [self._whole(delta) for delta in frame.deltas] if self._ahead else frame.deltas

    def clear(self) -> None:
        """Forget all blocks: the connection is lost."""
        self._ahead.clear()

    def _whole(self, delta: TokenDelta) -> TokenDelta:
        ahead, logprobs = self._ahead.pop(delta.request_id, []), delta.prompt_logprobs
        if not ahead or logprobs is None:
            return delta
        whole = PromptLogprobs(logprobs.top, ahead + logprobs.blocks)
        return msgspec.structs.replace(delta, prompt_logprobs=whole)
