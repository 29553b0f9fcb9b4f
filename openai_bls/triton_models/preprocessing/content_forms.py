"""Forms of contents that a chat template takes: strings, or lists of parts alone, as some of models with images do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimitError

_PROBE = "probe of a text"
_MOST_TEMPLATES = 64
"""Templates whose forms are kept."""


class ContentForms:
    """Forms that templates take, found out by rendering a message. Any thread may use it."""

    def __init__(self, render: Callable[[PromptRequest, float], str]) -> None:
        """Args: render: renders a request by its chat template, in so many seconds of CPU time."""
        self._render = render
        self._needs_parts: dict[str | None, bool] = {}

    def fitting(self, request: PromptRequest) -> PromptRequest:
        """`request` with its texts as lists of one part, where its template drops strings and takes these."""
        template = request.chat_template
        known = self._needs_parts.get(template)
        if known is None:
            known = not self._renders(template, _PROBE) and self._renders(template, _parts(_PROBE))
            if len(self._needs_parts) < _MOST_TEMPLATES:
                self._needs_parts[template] = known
        if not known:
            return request
        messages = [
            {**message, "content": _parts(message["content"])} if isinstance(message.get("content"), str) else message
            for message in request.messages or []
        ]
        return msgspec.structs.replace(request, messages=messages)

    def _renders(self, template: str | None, content: Any) -> bool:
        request = PromptRequest(messages=[{"role": "user", "content": content}], chat_template=template)
        try:
            return _PROBE in self._render(request, rendering.CPU_S)
        except (InvalidRequestError, CpuLimitError):
            return False


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
