"""/v1/load_lora_adapter and /v1/unload_lora_adapter: adapters that come and go while the server runs, as in vLLM."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from openai_bls.api.common.bodies import convert
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.endpoint import one_shot
from openai_bls.core.errors import ApiError, InvalidRequestError, PermissionDeniedError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class LoadBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/load_lora_adapter."""

    model: str | None = None
    """An addition: the base model, where several are served."""
    lora_name: _Text
    """The name that requests then give as `model`: letters, digits, `-._:`, up to 128; a name that is served already is
    a 400."""
    lora_path: _Text
    """A PEFT folder below the setting `lora_root`, absolute or relative to it."""


class UnloadBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/unload_lora_adapter."""

    model: str | None = None
    """An addition: the base model, where several are served."""
    lora_name: _Text
    """The name of an adapter; one that is none is a 404."""


class LoraAnswer(msgspec.Struct, frozen=True):
    """Answer of both."""

    message: str


async def load(service: Service, context: RequestContext, body: dict[str, Any]) -> LoraAnswer:
    """Load an adapter; when the answer comes, it is served under its name.

    Raises:
        ApiError: it cannot be loaded.
    """
    service.require_admin(context)
    request = convert(body, LoadBody)
    root = _root(service)
    target = service.find(context, request.model)
    if target.lora_name is not None:
        raise InvalidRequestError(f"{request.model!r} is an adapter, not a base model.", param="model")
    if request.lora_name in service.models.names:
        raise InvalidRequestError(f"{request.lora_name!r} is served already: unload it first.", param="lora_name")
    with admitted(service, context, target.name):
        folder = await asyncio.to_thread(_folder, root, request.lora_path)
        await target.model.engine.update_lora(request.lora_name, folder)
    return LoraAnswer(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload(service: Service, context: RequestContext, body: dict[str, Any]) -> LoraAnswer:
    """Unload an adapter: requests that run with it finish, further ones are a 404.

    Raises:
        ApiError: no such adapter is served.
    """
    service.require_admin(context)
    request = convert(body, UnloadBody)
    _root(service)
    target = service.find(context, request.lora_name)
    if target.lora_name is None or (request.model is not None and request.model not in target.model.names):
        raise InvalidRequestError(f"{request.lora_name!r} is no adapter of that model.", param="lora_name")
    with admitted(service, context, target.name):
        await target.model.engine.update_lora(request.lora_name, "")
    return LoraAnswer(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _folder(root: Path, path: str) -> str:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # no path at all, or links that go round
        folder = (root / path).resolve()
        if root in folder.parents:
            _require_inside(root, folder)
            return str(folder)
    raise InvalidRequestError(
        "'lora_path' is not below the directory from which this server takes adapters (lora_root).", param="lora_path"
    )


def _require_inside(root: Path, folder: Path) -> None:
    """Check the files of an adapter: one that is a link would be read from where it leads.

    Raises:
        InvalidRequestError: one leads out of `root`.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() and root not in path.resolve().parents:
            raise InvalidRequestError(
                f"'{path.name}' in 'lora_path' is a link out of the directory from which this server takes adapters "
                "(lora_root).",
                param="lora_path",
            )


def _root(service: Service) -> Path:
    root = service.settings.lora_root
    if not root:
        raise InvalidRequestError(
            "Adapters are not loaded at run time here: the parameter 'lora_root' of openai_bls names the directory "
            "from which they may be."
        )
    return Path(root).resolve()


_ADMINS = frozenset[type[ApiError]]({PermissionDeniedError})

ENDPOINTS = (
    one_shot("load_lora_adapter", load, body=LoadBody, summary="Load an adapter", has_guards=False, errors=_ADMINS),
    one_shot(
        "unload_lora_adapter", unload, body=UnloadBody, summary="Unload an adapter", has_guards=False, errors=_ADMINS
    ),
)
