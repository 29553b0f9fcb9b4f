"""Registry of task models: other Triton models of this server that declare an `openai_task`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from openai_bls.core.errors import InvalidRequestError, ModelNotFoundError, OverloadedError

Task = Literal["chat", "classify", "embeddings", "rerank", "score", "speech", "transcription"]
TASKS: tuple[Task, ...] = get_args(Task)
AnyTask = Task | Literal["reward"]
"""Task of an engine or of another Triton model."""

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
AUDIO_FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)
"""Formats of audio that OpenAI's clients ask for."""
SAMPLE_FORMATS: tuple[AudioFormat, ...] = ("wav", "pcm")
"""Those that are made of samples without a library."""

ENDPOINTS: dict[str, str] = {
    "chat": "answers chats: use /v1/chat/completions",
    "classify": "classifies texts: use /v1/classify or /v1/moderations",
    "embeddings": "makes embeddings: use /v1/embeddings, /v1/rerank or /v1/score",
    "rerank": "scores documents against a query: use /v1/rerank or /v1/score",
    "reward": "gives rewards: use /v1/classify",
    "score": "scores documents against a query: use /v1/rerank or /v1/score",
    "speech": "speaks texts: use /v1/audio/speech",
    "transcription": "transcribes audio: use /v1/audio/transcriptions",
}
"""Task → what a model of it does and where, as the end of a sentence."""

BUILDS: dict[str, str] = {"embeddings": "embed", "score": "score", "classify": "classify", "reward": "reward"}
"""Task of an engine that pools → `--task` of its build."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as config.pbtxt declares it."""

    name: str
    data_type: str
    """Data type in config.pbtxt, such as TYPE_STRING."""
    dims: tuple[int, ...]
    """Dimensions without the batch; -1 is any size."""
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A Triton model that is loaded and declares an `openai_task`."""

    name: str
    """Name of the Triton model, which clients use too."""
    task: str
    """A `Task`, unless that is the fault."""
    created: int
    """Unix time at which it was found."""
    fault: str | None = None
    """Why it cannot be used, as one sentence; None if it can."""
    max_batch_size: int = 0
    """0 is a model without a batch dimension."""
    decoupled: bool = False
    """True if the model answers a request with any number of responses."""
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Inputs by role (`text`, `query`), which is also the default name; optional ones that the model lacks are
    absent."""
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    timeout_s: float | None = None
    """Deadline of a request to it in seconds; None is the setting of `openai_bls`."""
    matryoshka: bool = False
    """True if embeddings may be cut: the first numbers, normalised again, are embeddings too."""
    labels: tuple[str, ...] = ()
    """Names of its classes; empty if it has an output for them."""
    threshold: float = 0.5
    """Score from which on a class is flagged."""
    sample_rate: int | None = None
    """Samples of its audio in a second; None if it does not say."""
    formats: tuple[str, ...] = ()
    """Formats of audio that it can be asked for, the default first."""
    voices: tuple[str, ...] = ()
    """Names of its voices, the default first; empty if any name goes to the model, or it has one voice."""
    language: str = ""
    """The only language that it hears; empty if it does not say."""


class TaskModels:
    """All task models of this server, by name; every method belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._models: dict[str, TaskModel] = {}
        self.look: Callable[[str | None], Awaitable[None]] = _look_nowhere
        """Ask the server now which models it has, and for the one of that name; set by whoever discovers them."""

    def __iter__(self) -> Iterator[TaskModel]:
        return iter(self._models.values())

    def get(self, name: str) -> TaskModel | None:
        """The model of that name, with or without a fault."""
        return self._models.get(name)

    def replace(self, models: Iterable[TaskModel]) -> None:
        """Replace the registered task models."""
        self._models = {model.name: model for model in models}

    async def find(self, name: str | None, tasks: Collection[AnyTask], served: Collection[str] = ()) -> TaskModel:
        """The model of that name, if it has one of `tasks`; None is the only one that there is.

        Args:
            name: None looks for the only model of these tasks.
            tasks: tasks that the model may have.
            served: names that belong to engines.

        Raises:
            InvalidRequestError: that model does something else, or there are several.
            ModelNotFoundError: there is none.
            OverloadedError: it has a fault.
        """
        if name in served:
            raise InvalidRequestError(
                f"The model {name!r} generates text; {self._choices(tasks, served)}.",
                param="model",
                code="unsupported_endpoint",
            )
        if name not in self._models and (name is not None or not self._of(tasks, served)):
            await self.look(name)
        model = self._only(tasks, served) if name is None else self._models.get(name)
        if model is None:
            raise ModelNotFoundError(
                f"The model {name!r} does not exist; {self._choices(tasks, served)}.", param="model"
            )
        if model.fault is not None:
            raise unusable(model)
        if model.task not in tasks:
            raise wrong_endpoint(model)
        return model

    def _of(self, tasks: Collection[str], served: Collection[str]) -> list[TaskModel]:
        return [model for model in self if model.task in tasks and model.name not in served]

    def _only(self, tasks: Collection[str], served: Collection[str]) -> TaskModel:
        models = self._of(tasks, served)
        usable = [model for model in models if model.fault is None]
        if len(usable) == 1 or (models and not usable):
            return (usable or models)[0]
        if not models:
            raise ModelNotFoundError(f"{self._choices(tasks, served).capitalize()}.", param="model")
        raise several([model.name for model in models])

    def _choices(self, tasks: Collection[str], served: Collection[str]) -> str:
        names = ", ".join(model.name for model in self._of(tasks, served))
        if names:
            return f"models for this endpoint: {names}"
        kinds = " or ".join(sorted(set(tasks).intersection(TASKS)))
        builds = " or ".join(f"`openai-bls build --task {BUILDS[task]}`" for task in sorted(set(tasks) & set(BUILDS)))
        if not builds:
            return (
                "no model of this server is for this endpoint: it needs another Triton model, with openai_task "
                f"{kinds} in its config.pbtxt"
            )
        return (
            f"no model of this server is for this endpoint: {builds} makes one, or openai_task {kinds} in the "
            "config.pbtxt of another Triton model"
        )


def several(names: Iterable[str]) -> InvalidRequestError:
    """The error for a request without `model` where several could answer."""
    return InvalidRequestError(
        f"'model' is missing: models for this endpoint: {', '.join(names)}.",
        param="model",
        code="missing_required_parameter",
    )


def unusable(model: TaskModel) -> OverloadedError:
    """The error for a request to a model with a fault."""
    return OverloadedError(f"The model {model.name!r} cannot be used: {model.fault}.", code="model_unavailable")


def wrong_endpoint(model: TaskModel) -> InvalidRequestError:
    """The error for a request that the model's task does not fit."""
    return InvalidRequestError(
        f"The model {model.name!r} {ENDPOINTS[model.task]}.", param="model", code="unsupported_endpoint"
    )


async def _look_nowhere(name: str | None) -> None:
    pass
