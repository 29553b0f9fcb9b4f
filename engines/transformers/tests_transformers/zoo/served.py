"""A model repository served in this process: the engine, the prompts and /v1 as the models have them, over the sockets
between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai_bls.api.app import create_app
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.settings import PreprocessingSettings
from openai_bls.engines.registry import create_engine
from openai_bls.pipeline.models.registry import Models
from openai_bls.pipeline.service import Service
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.openai_bls.engine_connection import EngineConnection
from openai_bls.triton_models.preprocessing.model import Preprocessing
from openai_bls.triton_models.repository.engines import ENGINE, PREPROCESSING, backends, openai_bls_settings
from openai_bls.triton_models.repository.folders import ModelFolders
from tests.fakes.model_calls import FakeModelCalls

_CONNECTED_S = 120.0
"""Most seconds until the engine's connection is there, on a machine that is busy with other tests."""


@asynccontextmanager
async def served(repository: Path) -> AsyncIterator[Any]:
    """The ASGI application of /v1 for the default engine of a repository."""
    owner, version_dir, own = os.getpid(), repository / ENGINE / "1", repository / "openai_bls"
    exchange = ExchangeServer(address(ENGINE, owner))
    engine = create_engine(version_dir, exchange.on_step, {"num_threads": "1"})
    exchange.start(engine)
    tokenizer_dir = repository / PREPROCESSING / "1" / "tokenizer"
    preprocessing = Preprocessing(tokenizer_dir, PreprocessingSettings(), lambda: version_dir)
    prompts = PromptExchangeServer(
        address(PREPROCESSING, owner), preprocessing.prepare_quickly, 1, preprocessing.prepare
    )
    prompts.start()
    folders = ModelFolders({"model_repository": str(own), "model_name": own.name, "model_version": "1"}, owner)
    loop, settings, calls = asyncio.get_running_loop(), openai_bls_settings(own, {}), FakeModelCalls()
    connection = EngineConnection(backends(folders, own, "1")[0], settings, is_default=True)
    connected = asyncio.Event()
    try:
        connection.connect(owner, calls, lambda _: connected.set())
        await asyncio.wait_for(connected.wait(), _CONNECTED_S)
        assert connection.model is not None
        yield create_app(Service(Models([connection.model]), settings, calls), WriteBatcher(loop))
    finally:
        await connection.close()
        engine.close()
        exchange.close()
        prompts.close()
        preprocessing.close()
