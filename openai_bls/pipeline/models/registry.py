"""Registry of the served models: an engine with its tokenizer, under one or more names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, PromptRequest, PromptResult, TokenDelta
from openai_bls.core.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    UnsupportedByModelError,
)
from openai_bls.output.detect import ModelFormats
from openai_bls.output.detokenizer.factory import DetokenizerFactory
from openai_bls.pipeline.task_models.registry import (
    ENDPOINTS,
    AnyTask,
    TaskModel,
    TaskModels,
    several,
    unusable,
    wrong_endpoint,
)


class EngineClient(Protocol):
    """Client of an engine: `transport.ipc.client` or `transport.grpc.client`."""

    @property
    def stats(self) -> EngineStats | None:
        """The engine's load, about a second old; None if it is not known."""

    @property
    def connected(self) -> bool:
        """True if the engine can be reached."""

    async def ready(self) -> None:
        """Wait for an engine that is being reloaded; raises OverloadedError if it does not come back."""

    def new_request_id(self) -> int:
        """An id that is unique among the engine's requests."""

    def submit(self, request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        """Start a request; `listener` gets its deltas, the last of which has a finish_reason."""

    def cancel(self, request_id: int) -> None:
        """Stop a request; its listener is not called again."""

    async def update_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path`, or unload it if that is empty; raises ApiError."""

    async def reset_prefix_cache(self) -> None:
        """Have the engine forget its cached prompts; raises ApiError."""


class PromptClient(Protocol):
    """Client of preprocessing: `transport.ipc.prompts`."""

    @property
    def connected(self) -> bool:
        """True if preprocessing can be reached."""

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`; raises EngineError if preprocessing cannot be reached."""


class ServedModel:
    """An engine with its tokenizer, clients and formats.

    Args:
        info: facts of the engine.
        engine: client of the engine.
        prompts: client of preprocessing.
        detokenizers: detokenizers for the engine's tokenizer.
        formats: tool-call and reasoning formats.
        aliases: further names.
        tokenizer_dir: folder with the tokenizer's files.
    """

    def __init__(
        self,
        info: EngineInfo,
        engine: EngineClient,
        prompts: PromptClient,
        detokenizers: DetokenizerFactory,
        formats: ModelFormats,
        aliases: Sequence[str] = (),
        tokenizer_dir: Path | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer_dir = tokenizer_dir
        self.prompts = prompts
        self.detokenizers = detokenizers
        self.formats = formats
        self._aliases = tuple(aliases)
        self.use_engine(info)

    def use_engine(self, info: EngineInfo) -> None:
        """Serve the engine that `info` describes: after a reload it may be another, or its adapters have changed."""
        self.info = info
        self.names = tuple(dict.fromkeys((info.model_name, *self._aliases)))
        # Clients may compare it to see that the backend has changed; adapters come and go beside it.
        backend = msgspec.structs.replace(info, lora_names=())
        self.fingerprint = "fp_" + hashlib.sha256(msgspec.json.encode(backend)).hexdigest()[:10]

    @property
    def connected(self) -> bool:
        """True if the engine and its preprocessing can be reached."""
        return self.engine.connected and self.prompts.connected

    @property
    def failed(self) -> bool:
        """True if the engine has reported that it answers every request with an error."""
        stats = self.engine.stats
        return stats is not None and stats.failed

    def require_task(self, task: str) -> None:
        """Refuse a request for a task that is not the engine's.

        Raises:
            InvalidRequestError: the engine does something else.
        """
        own = self.info.task
        if own not in (task, "generate"):
            raise InvalidRequestError(
                f"The model {self.info.model_name!r} {ENDPOINTS[own]}.", param="model", code="unsupported_endpoint"
            )

    def supports(self, field: str) -> bool:
        """True if the engine honours the field of `SamplingParams` or `GenerationRequest`."""
        return field in self.info.supported

    async def tokenize(
        self, request: PromptRequest, param: str | None = None, *, key: str = "", any_length: bool = False
    ) -> PromptResult:
        """Token ids for `request`.

        Args:
            request: request to preprocessing.
            param: name of the field that the prompts come from, where it is not `prompt`.
            key: name of the API key whose turn it takes.
            any_length: tokenize what is too long for the context, too, which takes a while.

        Raises:
            ApiError: the request is bad, or preprocessing cannot be reached.
        """
        limit = None if any_length else self.info.max_model_len
        result = await self.prompts.prepare(msgspec.structs.replace(request, max_prompt_tokens=limit, key=key))
        if param is not None and result.param is not None and result.param.startswith("prompt["):
            # The one at fault of several.
            param += result.param.removeprefix("prompt")
        if result.error is not None and result.unsupported:
            raise UnsupportedByModelError(result.error)
        if result.error is not None and result.code == ContextLengthError.default_code and limit is not None:
            where = param or result.param or "prompt"
            raise ContextLengthError(result.error, prompt_tokens=None, max_model_len=limit, param=where)
        if result.error is not None:
            raise InvalidRequestError(result.error, param=param or result.param, code=result.code)
        return result


class Target(NamedTuple):
    """The served model that a request's `model` names."""

    model: ServedModel
    lora_name: str | None
    """The adapter, if the name is an adapter's."""

    @property
    def name(self) -> str:
        """Name in the metrics."""
        return self.lora_name or self.model.info.model_name


class Models:
    """All served models. The first is the default, unless the default engine has failed.

    Names are matched in this order: each model's own and its aliases, then the adapters, then the task models.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        failed: Mapping[str, str] | None = None,
        *,
        has_default: bool = True,
    ) -> None:
        self._models = list(models)
        self._has_default = has_default
        self.failed: Mapping[str, str] = {} if failed is None else failed
        """Why engines that the repository has are not served, by the Triton model."""
        self.tasks = TaskModels()
        """Other Triton models, which do something else or do it in another way."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def default(self) -> ServedModel | None:
        """The model of requests without `model`; None if the default engine has failed."""
        return self._models[0] if self._has_default else None

    @property
    def longest_context(self) -> int:
        """Tokens of the longest context of the engines."""
        return max(model.info.max_model_len for model in self._models)

    def add(self, model: ServedModel, *, as_default: bool = False) -> None:
        """Add a model, or the default one."""
        self._models.insert(0 if as_default else len(self._models), model)
        self._has_default = self._has_default or as_default

    @property
    def engine_names(self) -> list[str]:
        """Every name of an engine or adapter, each once."""
        models = [name for model in self._models for name in model.names]
        adapters = [name for model in self._models for name in model.info.lora_names]
        return list(dict.fromkeys(models + adapters))

    @property
    def names(self) -> list[str]:
        """Every name, each once; task models with a fault are left out."""
        tasks = [task.name for task in self.tasks if task.fault is None]
        return list(dict.fromkeys(self.engine_names + tasks))

    def engine_target(self, name: str | None) -> Target | None:
        """The engine or adapter of that name; None as name is the default, None as result that there is none."""
        if name is None:
            return None if self.default is None else Target(self.default, None)
        for model in self._models:
            if name in model.names:
                return Target(model, None)
        for model in self._models:
            if name in model.info.lora_names:
                return Target(model, name)
        return None

    def get(self, name: str | None) -> Target | TaskModel | None:
        """Model that serves `name`, None for the default; None if nothing does."""
        target = self.engine_target(name)
        return self.tasks.get(name) if target is None and name is not None else target

    async def look_for(self, name: str | None) -> Target | TaskModel | None:
        """The same; the server is asked for its models if none of that name is known."""
        found = self.get(name)
        if found is None and name is not None:
            await self.tasks.look(name)
            found = self.get(name)
        return found

    def task_model(self, name: str | None) -> TaskModel | None:
        """The task model that a request's `model` names, if any."""
        found = self.get(name)
        return found if isinstance(found, TaskModel) else None

    async def find_task(self, name: str | None, tasks: Collection[AnyTask]) -> Target | TaskModel:
        """The engine or task model of that name, if it has one of `tasks`; None is the only one that there is.

        Raises:
            InvalidRequestError: that model does something else, or there are several.
            ModelNotFoundError: there is none.
            OverloadedError: it has a fault.
        """
        if name is None:
            engines = [model for model in self if model.info.task in tasks]
            others = [task.name for task in self.tasks if task.task in tasks and task.fault is None]
            if engines and len(engines) + len(others) > 1:
                raise several([*(model.info.model_name for model in engines), *others])
            if engines:
                return Target(engines[0], None)
        else:
            target = self.engine_target(name)
            if target is not None and target.model.info.task in tasks:
                return target
            if target is not None:
                target.model.require_task("generate")
        return await self.tasks.find(name, tasks, self.engine_names)

    def target(self, name: str | None, found: Target | TaskModel | None) -> Target:
        """What was found under a name as the model or adapter of a generation.

        Raises:
            ModelNotFoundError: no model of that name is served.
            InvalidRequestError: it is a task model, which is for another endpoint.
            OverloadedError: it is a task model with a fault, or the default engine, which has failed.
        """
        if isinstance(found, Target):
            return found
        if found is not None:
            raise unusable(found) if found.fault is not None else wrong_endpoint(found)
        if name is None:
            served = ", ".join(self.engine_names)
            raise OverloadedError(
                f"The default engine has failed to load; name another in `model`: {served}.", code="model_unavailable"
            )
        raise ModelNotFoundError(
            f"The model {name!r} does not exist; served here: {', '.join(self.names)}.", param="model"
        )

    def card(self, name: str) -> dict[str, Any]:
        """The model object of /v1/models.

        Raises:
            ModelNotFoundError: no model of that name is served.
            OverloadedError: it is a task model with a fault.
        """
        found = self.get(name)
        if isinstance(found, TaskModel) and found.fault is None:
            return {
                "id": name,
                "object": "model",
                "created": found.created,
                "owned_by": "openai_bls",
                "root": name,
                "parent": None,
                "max_model_len": None,
                "task": found.task,
                "input_modalities": None,
            }
        model, lora_name = self.target(name, found)
        info = model.info
        said = model.formats.warnings
        return {
            "id": name,
            "object": "model",
            "created": info.created,
            "owned_by": "openai_bls",
            "root": info.model_name,
            "parent": info.model_name if lora_name is not None else None,
            "max_model_len": info.max_model_len,
            "task": info.task,
            "input_modalities": list(info.input_modalities),
            **({"warnings": said} if said else {}),
        }
