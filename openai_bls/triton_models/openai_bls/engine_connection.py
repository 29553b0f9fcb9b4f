"""Connection to one of the engines: its tokenizer and formats, and the clients of its models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output import detect
from openai_bls.output.detokenizer import factory
from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.pipeline.models.registry import ServedModel
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.prompts import PromptExchangeClient
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.bls.prompt_client import prompt_client
from openai_bls.triton_models.repository.engines import Backend
from openai_bls.triton_models.repository.foreign_backend import ForeignClient, foreign_backend_of
from openai_bls.triton_models.server.process import NoGrpcError, grpc_address

if TYPE_CHECKING:
    from openai_bls.transport.model_calls import ModelCalls
    from openai_bls.triton_models.bls.prompts import BlsPromptClient

logger = logging.getLogger(__name__)


class TokenizerError(ValueError):
    """A tokenizer that cannot be read."""


class UnreachableEngineError(Exception):
    """An engine that cannot be reached, now or later; the message is one sentence for the operator."""


class EngineConnection:
    """One of the engines behind an `openai_bls` instance.

    Args:
        backend: models of the engine.
        settings: settings of the model `openai_bls`.
        is_default: whether `model_aliases` are its names too.

    Raises:
        TokenizerError: the engine's tokenizer cannot be read.
        ValueError: a setting names a format that does not exist, or the `preprocessing` cannot be called by BLS.
    """

    def __init__(self, backend: Backend, settings: OpenAiBlsSettings, *, is_default: bool) -> None:
        self.backend = backend
        self.is_default = is_default
        try:
            self._detokenizers = factory.load(backend.tokenizer_dir)
            template = detect.chat_template(backend.tokenizer_dir)
        except (OSError, ValueError) as error:
            raise TokenizerError(f"the tokenizer of {backend.engine} cannot be read: {error}") from None
        self._formats = detect.detect(
            template,
            settings.format_for(settings.tool_call_parser, backend.engine),
            settings.format_for(settings.reasoning_parser, backend.engine),
        )
        for warning in self._formats.warnings:
            logger.warning("%s: %s", backend.engine, warning)
        self._aliases = settings.aliases if is_default else ()
        self._transport = backend.transport if settings.engine_transport == "auto" else settings.engine_transport
        self._grpc_url = settings.engine_grpc_url
        auto = settings.preprocessing_transport == "auto"
        prompt_transport = backend.prompt_transport if auto else settings.preprocessing_transport
        self._preprocessing = PreprocessingModel(backend.preprocessing_dir) if prompt_transport == "bls" else None
        self._preprocessing_timeout_s = settings.preprocessing_timeout_s
        self.client: ExchangeClient | ForeignClient | None = None
        self.prompts: PromptExchangeClient | BlsPromptClient | None = None
        self.model: ServedModel | None = None

    @property
    def complete(self) -> bool:
        """True while the engine and its preprocessing are there."""
        return self.model is not None and self.model.connected

    def connect(self, owner: int, model_calls: ModelCalls, on_engine: Callable[[EngineConnection], None]) -> None:
        """Begin to look for the engine; `on_engine` is called when it is there for the first time.

        Raises:
            UnreachableEngineError: it will never be there.
        """

        def take(info: EngineInfo) -> None:
            assert self.client is not None
            assert self.prompts is not None
            if self.model is not None:
                self.model.use_engine(info)
                return
            self.model = ServedModel(
                info,
                self.client,
                self.prompts,
                self._detokenizers,
                self._formats,
                self._aliases,
                self.backend.tokenizer_dir,
            )
            on_engine(self)

        def vocab_size() -> int:
            assert self.model is not None
            return self.model.info.vocab_size

        self.prompts = prompt_client(
            self.backend, self._preprocessing, owner, model_calls, self._preprocessing_timeout_s, vocab_size
        )
        if self._transport == "grpc":
            self.client = self._grpc_client(owner, take)
        else:
            self.client = ExchangeClient(address(self.backend.engine, owner), take)

    def _grpc_client(self, owner: int, take: Callable[[EngineInfo], None]) -> ForeignClient:
        engine = self.backend.engine
        try:
            url = self._grpc_url or grpc_address(owner)
        except NoGrpcError as error:
            raise UnreachableEngineError(
                f"the engine {engine} is reached through tritonserver's gRPC front end, but {error}; the parameter "
                "'engine_grpc_url' of openai_bls can name an address"
            ) from None
        try:
            # Not at the top: gRPC costs memory and time, and most engines are reached through the exchange.
            client = foreign_backend_of(self.backend.engine_dir).client()
        except ImportError as error:
            raise UnreachableEngineError(
                f"the engine {engine} is reached through gRPC, for which a package is missing ({error}): "
                "pip install 'tritonclient[grpc]'"
            ) from None
        except LookupError as error:
            raise UnreachableEngineError(f"the engine {engine} is to be reached through gRPC, but {error}") from None
        return client(engine, self.backend.engine_dir, url, take)

    def add_to(self, readiness: Readiness) -> None:
        """Have the engine and its preprocessing asked whether they answer, where the exchange leads to them."""
        if isinstance(self.client, ExchangeClient):
            readiness.add(self.backend.engine, self.client)
        # A model that is called by BLS is not asked beside: a request to a stopped one costs the server.
        if isinstance(self.prompts, PromptExchangeClient):
            readiness.add(self.backend.preprocessing, self.prompts)

    async def close(self) -> None:
        """Hang up."""
        if self.client is not None:
            await self.client.close()
        if self.prompts is not None:
            await self.prompts.close()


def connections(
    backends: Sequence[Backend], settings: OpenAiBlsSettings
) -> tuple[list[EngineConnection], dict[str, str]]:
    """Connections to the engines, the default one's first, and why others have none, by the Triton model.

    Raises:
        TokenizerError: the tokenizers of all engines cannot be read.
        ValueError: see `EngineConnection`.
    """
    found, failed = [], {}
    for backend in backends:
        try:
            found.append(EngineConnection(backend, settings, is_default=backend is backends[0]))
        except TokenizerError as error:
            if not found and backend is backends[-1]:
                raise
            logger.error("%s", error)
            failed[backend.engine] = "Its tokenizer cannot be read; the server's log says why."
    return found, failed
