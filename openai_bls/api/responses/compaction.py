"""Compaction of a conversation: its messages of the user, and a summary of all of it that the model writes."""

from __future__ import annotations

import time

import msgspec
from msgspec import Raw

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.events.answer_future import AnswerFuture
from openai_bls.api.responses.events import EventWriter
from openai_bls.api.responses.items import Item, compaction
from openai_bls.api.responses.output import Output
from openai_bls.api.responses.parsing import Request
from openai_bls.api.responses.responses import usage_body
from openai_bls.api.responses.sealing import seal
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.errors import EngineError
from openai_bls.core.request import ValidRequest
from openai_bls.core.usage import Usage

QUESTION = (
    "Summarize our conversation so far for yourself, so that you can go on from the summary alone: what I asked for "
    "and why, what was answered, facts, decisions and results of tools, and what is still open. Write the summary only."
)
"""The server's own message that ends the conversation."""
MAX_SUMMARY_TOKENS = 2048
"""Tokens of a summary; fewer if the context has no room for them."""


def summary_request(wanted: Request) -> ValidRequest:
    """The chat completion that writes the summary, the likeliest one."""
    return msgspec.structs.replace(
        wanted.chat,
        sampling=SamplingParams(temperature=0.0),
        sampling_given=("temperature",),
        default_max_tokens=MAX_SUMMARY_TOKENS,
    )


class CompactedResponse(Output, AnswerFuture[Raw]):
    """Resolves `answer` with the `response.compaction` object, as JSON text.

    Args:
        wanted: the request.
    """

    def __init__(self, wanted: Request) -> None:
        Output.__init__(self, EventWriter(None))
        AnswerFuture.__init__(self)
        earlier = wanted.previous.items if wanted.previous is not None else []
        self._kept = [item for item in earlier + wanted.inputs if _is_kept(item)]

    def done(self, usage: Usage) -> None:
        """Resolve the answer, unless there is no summary."""
        if self._summary():
            super().done(usage)
        else:
            self.failed(EngineError("The model wrote no summary of the conversation."))

    def make_answer(self, usage: Usage) -> Raw:
        """The compacted conversation."""
        response = {
            "id": new_id("resp_"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*self._kept, compaction(seal("compaction", self._summary()))],
            "usage": usage_body(usage),
        }
        return Raw(encode(response))

    def _summary(self) -> str:
        parts = [part["text"] for item in self.items if item["type"] == "message" for part in item["content"]]
        return "".join(parts).strip()


def _is_kept(item: Item) -> bool:
    """True for the user's messages, instructions among them, and further tools."""
    return item["type"] == "additional_tools" or bool(item["type"] == "message" and item["role"] != "assistant")
