"""Triton model `tensorrt_llm`: the engine, behind the official contract and the exchange. See docs/architecture.md."""

import os
from pathlib import Path
from typing import Any

from openai_bls import exchange, settings, stub, triton
from openai_bls.engine.manifest import EngineLoadError
from openai_bls.engine.select import create_engine
from openai_bls.errors import ApiError, EngineError
from openai_bls.exchange.server import ExchangeServer
from openai_bls.official_door import OfficialDoor


class TritonPythonModel:
    """Opens the engine's two doors."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine that `1/engine.json` describes."""
        triton.log_to_triton()
        version_dir = Path(args["model_repository"]) / args["model_version"]
        self.exchange = ExchangeServer(exchange.address(args["model_name"], os.getppid()))
        try:
            model_settings = settings.load(settings.TensorRtLlmSettings, triton.config_parameters(args), os.environ)
            overrides = settings.engine_overrides(os.environ)
            self.engine = create_engine(version_dir, self.exchange.on_step, overrides, model_settings)
        except (settings.SettingsError, EngineLoadError) as error:
            raise triton.load_error(error) from None
        self.exchange.start(self.engine)
        self.door = OfficialDoor(self.exchange, self.engine.info, model_settings)

    def execute(self, requests: list[Any]) -> None:
        """Submit every request; answers come from the engine's thread."""
        for request in requests:
            stream = triton.ResponseStream(request)
            try:
                self.door.open(triton.only_inputs(request), request.request_id(), stream)
            except ApiError as error:
                stream.fail(error)
            except Exception:
                triton.logger.exception("a request could not be read")
                stream.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """End what runs and free the engine."""
        self.engine.close()
        self.door.close()
        self.exchange.close()
        stub.release()
