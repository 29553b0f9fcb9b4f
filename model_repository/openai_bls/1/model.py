"""Triton model `openai_bls`: the OpenAI API on Triton's endpoints and on /v1. See docs/architecture.md."""

import logging
import os
from pathlib import Path
from typing import Any

from openai_bls import discovery, settings, stub, triton
from openai_bls.errors import EngineError
from openai_bls.http.sockets import PortInUseError

logger = logging.getLogger("openai_bls.model")


class TritonPythonModel:
    """Takes requests and hands them to the runtime, which answers them from its event loop."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the runtime; it waits for the engine by itself."""
        # Not at the top: Triton first runs this file in a process of its own that only asks for the configuration.
        from openai_bls.runtime import Runtime

        triton.log_to_triton()
        try:
            self.runtime = Runtime(
                settings.load(settings.OpenAiBlsSettings, triton.config_parameters(args), os.environ),
                discovery.backends(Path(args["model_repository"]), args["model_version"]),
                owner=os.getppid(),
            )
        except (settings.SettingsError, PortInUseError, OSError, ValueError) as error:
            raise triton.load_error(error) from None
        stub.settle()
        self.runtime.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to the runtime."""
        for request in requests:
            reply = triton.TextReply(request)
            try:
                self.runtime.submit(triton.text_inputs(request), triton.request_parameters(request), reply)
            except Exception:
                logger.exception("a request could not be read")
                reply.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """End what runs."""
        self.runtime.close()
        stub.release()
