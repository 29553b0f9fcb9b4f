"""/v1/conversations and below: conversations that responses are made in, kept by the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.common.bodies import Metadata, fault
from openai_bls.api.common.documented import documented
from openai_bls.api.common.fields import IgnoredFields, decoded_body
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.common.queries import NoQuery, parse_query
from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.api.responses import answers
from openai_bls.api.responses.conversations.store import Conversation, ConversationStore, conversation_store
from openai_bls.api.responses.items import OPTIONAL_TAGS, InputItem, item_parts, read_input
from openai_bls.api.responses.kept import KeptItem, kept_items
from openai_bls.api.responses.queries import included_items, item_page, parse_with_include
from openai_bls.api.responses.schema import ItemQuery, PageQuery
from openai_bls.api.responses.store import References, ResponseStore, response_store
from openai_bls.core.errors import NotFoundError
from openai_bls.pipeline.lifecycle.context import RequestContext

_Items = Annotated[
    list[dict[str, Any]], Meta(max_length=20), documented(Annotated[list[InputItem], Meta(max_length=20)])
]


class CreateConversation(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/conversations."""

    items: _Items | None = None
    """First items, at most 20: those that `input` of a response takes."""
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/conversations/{conversation_id}."""

    metadata: Metadata | None
    """Takes the place of what was there; null is none."""


class AddItems(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/conversations/{conversation_id}/items."""

    items: _Items
    """Items, at most 20: those that `input` of a response takes."""


class ConversationObject(msgspec.Struct):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    """Unix seconds."""
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct):
    """Answer to a deletion."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


_decoders: dict[type[Any], Any] = {
    cls: msgspec.json.Decoder(cls) for cls in (CreateConversation, UpdateConversation, AddItems)
}


class ConversationHandlers:
    """Handlers of one application."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.store: ConversationStore = api.shared(conversation_store)
        self.responses: ResponseStore = api.shared(response_store)

    async def create(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/conversations."""
        given, items = await self._parsed(request, context, CreateConversation)

        async def work() -> dict[str, Any]:
            return self.store.create(items, given.metadata or {}, context.key).body()

        return await self._api.answered(request, context, work())

    async def retrieve(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/conversations/{conversation_id}."""
        parse_query(request.query_params, NoQuery)
        return JsonResponse(self._conversation(request, context).body())

    async def update(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/conversations/{conversation_id}."""
        given, _ = await self._parsed(request, context, UpdateConversation)
        conversation = self._conversation(request, context)

        async def work() -> dict[str, Any]:
            self.store.update(conversation, given.metadata or {})
            return conversation.body()

        return await self._api.answered(request, context, work())

    async def delete(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/conversations/{conversation_id}."""
        parse_query(request.query_params, NoQuery)
        conversation = self._conversation(request, context)
        self.store.delete(conversation)
        return JsonResponse({"id": conversation.id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/conversations/{conversation_id}/items."""
        query = parse_with_include(request, ItemQuery)
        _, items = await self._parsed(request, context, AddItems)
        conversation = self._conversation(request, context)

        async def work() -> msgspec.Raw:
            self.store.add(conversation, items)
            return await item_page(items, PageQuery(include=query.include, limit=len(items), order="asc"), context.key)

        return await self._api.answered(request, context, work())

    async def list_items(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/conversations/{conversation_id}/items."""
        query = parse_with_include(request, PageQuery)
        return JsonResponse(await item_page(self._conversation(request, context).kept, query, context.key))

    async def retrieve_item(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/conversations/{conversation_id}/items/{item_id}."""
        query = parse_with_include(request, ItemQuery)
        item_id = request.path_params["item_id"]
        found = self._conversation(request, context).by_id.get(item_id)
        if found is None:
            raise _no_item(item_id)
        return JsonResponse(included_items([found.item()], query.include)[0])

    async def delete_item(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/conversations/{conversation_id}/items/{item_id}."""
        parse_query(request.query_params, NoQuery)
        conversation, item_id = self._conversation(request, context), request.path_params["item_id"]
        if not self.store.remove_item(conversation, item_id):
            raise _no_item(item_id)
        return JsonResponse(conversation.body())

    async def _parsed(
        self, request: Request, context: RequestContext, cls: type[Any]
    ) -> tuple[Any, tuple[KeptItem, ...]]:
        """The body of a request, and its items as they are kept."""
        limit, max_items = self._api.service.settings.max_request_bytes, self._api.service.models.longest_context
        ignored = IgnoredFields(self._api.service.settings.unknown_fields)

        def parse(body: bytes) -> tuple[Any, tuple[KeptItem, ...]]:
            references = References(self.responses, limit, context.key, self.store)
            given = decoded_body(_decoders[cls], body, fault, ignored)
            items: Sequence[dict[str, Any]] = getattr(given, "items", None) or ()
            check_count(sum(map(item_parts, items)), "items", max_items)
            return given, kept_items(read_input(list(items), references.take, ignored, "items"))

        parsed = await self._api.parsed(request, context, parse)
        context.ignored = ignored.names
        return parsed

    def _conversation(self, request: Request, context: RequestContext) -> Conversation:
        return self.store.get(request.path_params["conversation_id"], context.key)


def _no_item(item_id: str) -> NotFoundError:
    return NotFoundError(f"Item with id '{item_id[:100]}' not found in this conversation.")


_ONE = "/v1/conversations/{conversation_id}"
_ITEM = f"{_ONE}/items/{{item_id}}"


def _endpoint(
    name: str,
    method: str,
    path: str,
    handler: Callable[[ConversationHandlers, Request, RequestContext], Awaitable[Response]],
    summary: str,
    **more: Any,
) -> Endpoint:
    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        return await handler(api.shared(ConversationHandlers), request, context)

    operation = Operation(summary=summary, optional_tags=OPTIONAL_TAGS, **more)
    return Endpoint(name=name, method=method, paths=(path,), handler=handle, operation=operation)


ENDPOINTS = (
    _endpoint(
        "conversations",
        "POST",
        "/v1/conversations",
        ConversationHandlers.create,
        "A conversation",
        body=CreateConversation,
        answer=ConversationObject,
        example={"items": [{"role": "user", "content": "Say hello."}]},
    ),
    _endpoint(
        "conversations.retrieve",
        "GET",
        _ONE,
        ConversationHandlers.retrieve,
        "A conversation",
        answer=ConversationObject,
    ),
    _endpoint(
        "conversations.update",
        "POST",
        _ONE,
        ConversationHandlers.update,
        "Other metadata of a conversation",
        body=UpdateConversation,
        answer=ConversationObject,
        example={"metadata": {"topic": "greetings"}},
    ),
    _endpoint(
        "conversations.delete",
        "DELETE",
        _ONE,
        ConversationHandlers.delete,
        "Delete a conversation",
        answer=DeletedConversation,
    ),
    _endpoint(
        "conversations.items.create",
        "POST",
        f"{_ONE}/items",
        ConversationHandlers.add_items,
        "Add items to a conversation",
        body=AddItems,
        answer=answers.ItemPage,
        query=ItemQuery,
        example={"items": [{"role": "user", "content": "Say hello."}]},
    ),
    _endpoint(
        "conversations.items.list",
        "GET",
        f"{_ONE}/items",
        ConversationHandlers.list_items,
        "Items of a conversation",
        answer=answers.ItemPage,
        query=PageQuery,
    ),
    _endpoint(
        "conversations.items.retrieve",
        "GET",
        _ITEM,
        ConversationHandlers.retrieve_item,
        "An item of a conversation",
        answer=answers.ListedItem,
        query=ItemQuery,
    ),
    _endpoint(
        "conversations.items.delete",
        "DELETE",
        _ITEM,
        ConversationHandlers.delete_item,
        "Delete an item of a conversation",
        answer=ConversationObject,
    ),
)
"""Endpoints of conversations, for the registry of `responses`."""
