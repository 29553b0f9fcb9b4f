"""Content blocks of a Messages request, read where they stand: what is honoured, left out or refused there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.messages.errors import fault_at, refused
from openai_bls.api.messages.schema import (
    REFUSED_BLOCKS,
    SERVER_BLOCKS,
    Base64Source,
    Block,
    Citations,
    DocumentBlock,
    FileSource,
    ImageBlock,
    Message,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)

Part = dict[str, Any]
"""Part of a chat message's content."""

_BILLING = "x-anthropic-billing-header:"
"""Beginning of a system block of Claude Code's for Anthropic's servers. It is new with each request: a prefix cache
would find nothing behind it."""
_FOUND: dict[str, type[Block]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
}
_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    "user": {**_FOUND, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "tool_use": ToolUseBlock, "thinking": ThinkingBlock},
    "tool_result": {**_FOUND, "tool_reference": ToolReferenceBlock},
    "document": {"text": TextBlock, "image": ImageBlock},
    "search_result": {"text": TextBlock},
}
"""Position of a block → types allowed there."""
_PLACES = {"tool_result": "a tool's result", "document": "a document", "search_result": "a search result"}
_KNOWN = {name for types in _BLOCKS.values() for name in types}
_LEFT_OUT = frozenset({"redacted_thinking", "server_tool_use", "mcp_tool_use"})
"""Blocks that Anthropic's servers wrote for themselves; also every result of their tools."""
_SERVER_RESULT = "_tool_result"
_NO_PDF = "documents are read as text here: give a source of type 'text' or 'content'"


class BlockReader:
    """Reader of the content blocks of one request.

    Args:
        images: receiver of the paths of images, in their order.
        ignored: receiver of the fields and blocks without effect.
    """

    def __init__(self, images: list[str], ignored: IgnoredFields) -> None:
        self._images = images
        self._ignored = ignored

    def message(self, message: Message, at: int) -> list[Block]:
        """The blocks of message number `at`.

        Raises:
            InvalidRequestError: one is malformed, or not supported where it stands.
        """
        where = f"messages.{at}.content"
        # An answer may have been empty.
        if not message.content and message.role != "assistant":
            raise refused(where, "every message but an assistant's needs content")
        return self.blocks(message.content, where, message.role)

    def blocks(self, content: str | list[dict[str, Any]], where: str, place: str) -> list[Block]:
        """The blocks of a content; raises as `message` does."""
        if isinstance(content, str):
            return [TextBlock(text=content)] if content else []
        path = "system[]" if place == "system" else "messages[].content[]"
        blocks = (self._block(value, f"{where}.{at}", place, path) for at, value in enumerate(content))
        found = [block for block in blocks if block is not None]
        if place == "system":
            return [block for block in found if not (isinstance(block, TextBlock) and block.text.startswith(_BILLING))]
        return found

    def _block(self, value: dict[str, Any], where: str, place: str, path: str) -> Block | None:
        kind = value.get("type")
        if not isinstance(kind, str):
            raise refused(f"{where}.type", "Field required" if kind is None else "Expected `str`")
        known = _BLOCKS[place].get(kind)
        if known is None:
            self._unknown(kind, where, place, path)
            return None
        if known is DocumentBlock:
            _check_source(value.get("source"), f"{where}.source")
        block = converted_fields(value, known, fault_at(where), self._ignored, path)
        if block.cache_control is not None:
            self._ignored.add(f"{path}.cache_control")
        self._check(block, where, path)
        return block

    def _unknown(self, kind: str, where: str, place: str, path: str) -> None:
        """Note a block that is left out.

        Raises:
            InvalidRequestError: it cannot be left out.
        """
        is_servers = kind in _LEFT_OUT or (kind.endswith(_SERVER_RESULT) and kind not in _KNOWN)
        if is_servers and place in ("assistant", "user"):
            self._ignored.add(f"{path.removesuffix('[]')}[{kind}]")
            return
        article = _PLACES.get(place, f"content of the role '{place}'")
        why = f"it cannot stand in {article}" if kind in _KNOWN else REFUSED_BLOCKS.get(kind, SERVER_BLOCKS)
        raise refused(where, f"a block of type {kind[:100]!r} is not supported: {why}")

    def _check(self, block: Block, where: str, path: str) -> None:
        """Check a block beyond its types, and read the blocks inside of it."""
        if isinstance(block, TextBlock) and block.citations:
            # Of what an earlier answer says; they are no part of its text.
            self._ignored.add(f"{path}.citations")
        elif isinstance(block, ToolUseBlock) and block.caller not in (None, {"type": "direct"}):
            raise refused(
                f"{where}.caller", "tools are called by the model itself; nothing but direct calls is supported"
            )
        elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
            block.content = parts(self.blocks(block.content, f"{where}.content", "tool_result"))
        elif isinstance(block, ImageBlock):
            self._images.append(where)
        elif isinstance(block, DocumentBlock):
            _check_citations(block.citations, where)
            source = block.source
            if not isinstance(source, TextSource) and isinstance(source.content, list):
                source.content = parts(self.blocks(source.content, f"{where}.source.content", "document"))
        elif isinstance(block, SearchResultBlock):
            _check_citations(block.citations, where)
            block.content = parts(self.blocks(block.content, f"{where}.content", "search_result"))


def _check_source(source: Any, where: str) -> None:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind in ("base64", "url", "file"):
        raise refused(where, f"a document of type {kind!r} is not supported: {_NO_PDF}")


def _check_citations(citations: Citations | None, where: str) -> None:
    if citations is not None and citations.enabled:
        raise refused(f"{where}.citations.enabled", "answers have no citations here; leave it out, or say false")


def parts(blocks: Iterable[Block]) -> list[Part]:
    """Parts of a chat message."""
    found: list[Part] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            found.append(_text(block.text))
        elif isinstance(block, ImageBlock):
            found.append({"type": "image_url", "image_url": _image(block.source)})
        elif isinstance(block, DocumentBlock):
            found += _document(block)
        elif isinstance(block, SearchResultBlock):
            found += [_text(f"Search result: {block.title}\nSource: {block.source}"), *block.content]
        elif isinstance(block, ToolReferenceBlock):
            found.append(_text(f"Tool: {block.tool_name}"))
    return found


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _document(block: DocumentBlock) -> list[Part]:
    head = [f"Document: {block.title}"] if block.title else ["Document:"]
    if block.context:
        head.append(f"Context: {block.context}")
    source = block.source
    content = source.data if isinstance(source, TextSource) else source.content
    return [_text("\n".join(head)), *([_text(content)] if isinstance(content, str) else content)]


def _image(source: Base64Source | UrlSource | FileSource) -> dict[str, str]:
    if isinstance(source, FileSource):
        return {"file_id": source.file_id}
    if isinstance(source, UrlSource):
        return {"url": source.url}
    return {"url": f"data:{source.media_type};base64,{source.data}"}
