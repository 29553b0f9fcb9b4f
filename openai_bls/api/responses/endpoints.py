"""/v1/responses and below: OpenAI's Responses API."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.common.one_shot import prompt_token_ids
from openai_bls.api.endpoint import Endpoint, Smoke, expect
from openai_bls.api.http.handlers import Api, Handler, JsonResponse
from openai_bls.api.responses import parsing
from openai_bls.api.responses.items import page
from openai_bls.api.responses.responses import Draft
from openai_bls.api.responses.store import References, ResponseStore, Stored
from openai_bls.api.responses.writers import StreamedResponse, WholeResponse
from openai_bls.core.errors import ApiError, InvalidRequestError, NotFoundError
from openai_bls.pipeline.model_registry import Target

logger = logging.getLogger(__name__)


class ResponsesHandlers:
    """Handlers of one application, which share a store."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._service = api.service
        self.store = ResponseStore()

    async def create(self, request: Request) -> Response:
        """POST /v1/responses."""
        wanted = parsing.parse_create(await self._api.body(request), self._references())
        try:
            if wanted.body.stream:
                return await self._stream(request, wanted)
            completing = self._service.complete(wanted.chat, lambda target: WholeResponse(*self._parts(wanted, target)))
            response = await self._api.answered(request, completing)
        except ApiError as error:
            raise wanted.translated(error) from None
        # Not before: a guard may have changed the answer, and the next one must not be made from what it has removed.
        self._keep(wanted, bytes(response.body))
        return response

    async def _stream(self, request: Request, wanted: parsing.CreateRequest) -> Response:
        stream = self._api.event_stream(ending=b"")
        generation = await self._service.begin(
            wanted.chat,
            lambda target: StreamedResponse(
                stream, wanted.translated, lambda encoded: self._keep(wanted, encoded), *self._parts(wanted, target)
            ),
        )
        return await self._api.streamed(request, stream, generation)

    def _parts(self, wanted: parsing.CreateRequest, target: Target) -> tuple[Draft, LogprobRenderer | None]:
        """Arguments that both writers take."""
        model = target.model
        name = wanted.chat.model or model.info.model_name
        draft = Draft(wanted.body, wanted.tools, name, model.info.sampling_defaults)
        return draft, LogprobRenderer(model.detokenizers, chat=True) if wanted.chat.logprobs is not None else None

    def _keep(self, wanted: parsing.CreateRequest, encoded: bytes) -> None:
        """Store a finished response."""
        if wanted.body.store is False:
            return
        try:
            self.store.put(Stored(encoded, wanted.inputs, wanted.previous))
        except msgspec.ValidationError as error:
            logger.error("a response that a guard has made is not stored: %s", error)

    async def count(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens."""
        wanted = parsing.parse_count(await self._api.body(request), self._references())
        try:
            return await self._api.answered(request, self._counted(wanted))
        except ApiError as error:
            raise wanted.translated(error) from None

    async def _counted(self, wanted: parsing.Request) -> dict[str, Any]:
        tokens = await prompt_token_ids(self._service, wanted.chat, "responses.input_tokens")
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    async def retrieve(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}."""
        # Only what is made in the background can be streamed again.
        _check_query(request, stream="false")
        return JsonResponse(Raw(self._stored(request).response))

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/responses/{response_id}."""
        _check_query(request)
        response_id = self._stored(request).id
        self.store.delete(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}/input_items."""
        _check_query(request, limit=None, order=None, after=None)
        return JsonResponse(page(self._stored(request).input_items, request.query_params))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/responses/{response_id}/cancel, refused."""
        response_id = self._stored(request).id
        raise InvalidRequestError(
            f"Response '{response_id}' cannot be cancelled: only background responses can be, and 'background' is not "
            "supported here. To cancel a response that is being made, close the connection."
        )

    def _references(self) -> References:
        """References of one request, with the same limit as its body."""
        return References(self.store, self._service.settings.max_request_bytes)

    def _stored(self, request: Request) -> Stored:
        response_id = request.path_params["response_id"]
        stored = self.store.get(response_id)
        if stored is None:
            raise NotFoundError(f"Response with id '{response_id}' not found.")
        return stored


def _check_query(request: Request, **known: str | None) -> None:
    """Refuse unsupported query parameters.

    Args:
        request: whose query it is.
        known: parameters and the one value that each may have; None leaves that to the caller.
    """
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise InvalidRequestError(f"The query parameter '{name}' is not supported here.", param=name)
        if known[name] not in (None, value):
            raise InvalidRequestError(f"The query parameter '{name}' may only be {known[name]} here.", param=name)


def _endpoint(
    name: str, path: str, handler: Callable[[ResponsesHandlers, Request], Awaitable[Response]], **more: Any
) -> Endpoint:
    def make(api: Api) -> Handler:
        return functools.partial(handler, api.shared(ResponsesHandlers))

    return Endpoint(name=name, paths=(path,), handler=make, **more)


def _check_response(answer: Any) -> str:
    expect(answer["status"] in ("completed", "incomplete"), f"status is {answer['status']!r}")
    return f"{answer['usage']['output_tokens']} tokens"


def _check_count(answer: Any) -> str:
    expect(answer["input_tokens"] > 0, "'input_tokens' is not above 0")
    return f"{answer['input_tokens']} tokens"


_ONE = "/v1/responses/{response_id}"

ENDPOINTS = (
    _endpoint(
        "responses",
        "/v1/responses",
        ResponsesHandlers.create,
        smoke=Smoke(body={"input": "Say hello.", "max_output_tokens": 8}, check=_check_response),
    ),
    # Before the paths that have an id in this place.
    _endpoint(
        "responses.input_tokens",
        "/v1/responses/input_tokens",
        ResponsesHandlers.count,
        smoke=Smoke(body={"input": "Say hello."}, check=_check_count),
    ),
    _endpoint("responses.retrieve", _ONE, ResponsesHandlers.retrieve, method="GET"),
    _endpoint("responses.delete", _ONE, ResponsesHandlers.delete, method="DELETE"),
    _endpoint("responses.input_items", f"{_ONE}/input_items", ResponsesHandlers.input_items, method="GET"),
    _endpoint("responses.cancel", f"{_ONE}/cancel", ResponsesHandlers.cancel),
)
