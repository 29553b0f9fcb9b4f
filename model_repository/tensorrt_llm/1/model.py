"""Triton model `tensorrt_llm`: the engine, behind the official tensors and the exchange. See docs/architecture.md."""

import os
from typing import Any

from openai_bls.core import settings
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process.loading import load_engine
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.triton_models import pb_utils, stub_process
from openai_bls.triton_models.repository.engines import TritonKeys
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.tensorrt_llm import lora_directory
from openai_bls.triton_models.tensorrt_llm.frontend import Frontend


class TritonPythonModel:
    """Serves one engine on Triton's endpoints and the exchange."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine that `1/engine.json` describes."""
        stub_process.begin()
        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        self.folders = ModelFolders(args, os.getppid())
        version_dir = self.folders.own / args["model_version"]
        self.exchange = ExchangeServer(pb_utils.model_address(args))
        try:
            self.folders.announce()
            model_settings = settings.load(settings.EngineSettings, pb_utils.config_parameters(args), os.environ)
            self.keys = TritonKeys(self.folders, os.environ)
            overrides = settings.engine_overrides(os.environ)
            loaded = load_engine(version_dir, self.exchange.on_step, overrides, model_settings)
        except (settings.SettingsError, EngineLoadError, OSError) as error:
            raise pb_utils.load_error(error) from None
        stub_process.settle()
        self.engine = loaded.engine
        self.exchange.start(self.engine, loaded.hand_over)
        self.adapters = lora_directory.watch(model_settings.lora_watch_dir, self.exchange.update_lora)
        self.decoupled = pb_utils.is_decoupled(args)
        self.frontend = Frontend(self.exchange, self.engine.info, model_settings, decoupled=self.decoupled)

    def execute(self, requests: list[Any]) -> None:
        """Submit every request; answers come from the engine's thread."""
        for request in requests:
            stream = pb_utils.ResponseStream(request, decoupled=self.decoupled)
            try:
                inputs = pb_utils.only_inputs(request, self.keys())
                self.frontend.open(inputs, request.request_id(), stream, stream.requested)
            except ApiError as error:
                stream.fail(error)
            except Exception:
                pb_utils.logger.exception("a request could not be read")
                stream.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """End what runs and free the engine."""
        self.folders.withdraw()
        self.adapters.close()
        self.engine.close()
        self.frontend.close()
        self.exchange.close()
        stub_process.release()
