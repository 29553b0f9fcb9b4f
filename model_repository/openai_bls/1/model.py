"""Triton model `openai_bls`: the OpenAI API on Triton's endpoints and on /v1. See docs/architecture.md."""

import logging
import os
from typing import Any

from openai_bls.api.http.listening.listener import PortInUseError
from openai_bls.core import settings
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.pipeline.metrics import directory as metrics_directory
from openai_bls.triton_models import pb_utils, stub_process
from openai_bls.triton_models.repository import engines
from openai_bls.triton_models.repository.folders import ModelFolders

logger = logging.getLogger("openai_bls.model")


class TritonPythonModel:
    """Takes requests and hands them to the runtime, which answers them from its event loop."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the runtime; it waits for the engine by itself."""
        stub_process.begin()
        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        metrics_directory.share(os.getppid())
        # Not at the top: it imports prometheus_client, and Triton first runs this file in a process of its own that
        # only asks for the configuration.
        from openai_bls.triton_models.openai_bls.runtime import Runtime

        self.folders = ModelFolders(args, os.getppid())
        try:
            self.folders.announce()
            self.runtime = Runtime(
                settings.load(settings.OpenAiBlsSettings, pb_utils.config_parameters(args), os.environ),
                engines.backends(self.folders, self.folders.own, args["model_version"]),
                owner=os.getppid(),
                call_model=pb_utils.call_model,
                metrics_port=pb_utils.MetricsPort(),
                instances=pb_utils.instance_count(args),
            )
        except (settings.SettingsError, PortInUseError, OSError, ValueError) as error:
            raise pb_utils.load_error(error) from None
        stub_process.settle()
        self.runtime.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to the runtime."""
        for request in requests:
            reply = pb_utils.TextReply(request)
            try:
                self.runtime.accept(
                    pb_utils.text_inputs(request),
                    pb_utils.request_parameters(request),
                    reply,
                    pb_utils.request_timeout_s(request),
                )
            except ApiError as error:
                reply.fail(error)
            except Exception:
                logger.exception("a request could not be read")
                reply.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """End what runs."""
        self.folders.withdraw()
        self.runtime.close()
        stub_process.release()
