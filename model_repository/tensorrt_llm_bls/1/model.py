"""Triton model `tensorrt_llm_bls`: text in, text out under the official names. See docs/architecture.md."""

import os
from pathlib import Path
from typing import Any

from openai_bls.core import settings
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.triton_models import pb_utils, stub_process
from openai_bls.triton_models.endpoint import request_keys
from openai_bls.triton_models.repository import engines


class TritonPythonModel:
    """Takes requests and hands them to the runtime, which answers them from its event loop."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the runtime; it waits for the engine by itself."""
        stub_process.begin()
        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        address = pb_utils.model_address(args)
        # Not at the top: Triton first runs this file in a process of its own that only asks for the configuration.
        from openai_bls.pipeline.observation.observer import Observer
        from openai_bls.transport.ipc.ping import PingServer
        from openai_bls.triton_models.tensorrt_llm_bls.runtime import Runtime

        models = Path(args["model_repository"]).parent
        self.decoupled = pb_utils.is_decoupled(args)
        try:
            settings.load(settings.TensorRtLlmBlsSettings, pb_utils.config_parameters(args), {})
            limits = engines.openai_bls_settings(models / "openai_bls", os.environ)
            self.api_keys = engines.triton_keys(limits)
            backend = engines.backends(models / "openai_bls", args["model_version"])[0]
            self.runtime = Runtime(
                backend,
                owner=os.getppid(),
                call_model=pb_utils.call_model,
                exclude_input_default=engines.excludes_input(backend, os.environ),
                decoupled=self.decoupled,
                limits=limits,
                api_keys=self.api_keys,
                instances=pb_utils.instance_count(args),
                observer=Observer.of(limits),
            )
        except (settings.SettingsError, OSError, ValueError) as error:
            raise pb_utils.load_error(error) from None
        stub_process.settle()
        self.runtime.start()
        self.server = PingServer(args["model_name"], address, self.runtime.probe)
        self.server.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to the runtime."""
        for request in requests:
            reply = pb_utils.ResponseStream(request, decoupled=self.decoupled)
            parameters: dict[str, Any] = {}
            try:
                parameters = pb_utils.request_parameters(request)
                key = request_keys.check_key(self.api_keys, parameters)
                # On `generate` it is a parameter like any other, in seconds.
                timeout = parameters.get("timeout", pb_utils.request_timeout_s(request))
                self.runtime.accept(pb_utils.only_inputs(request), reply, parameters, key, timeout, reply.requested)
            except ApiError as error:
                self.runtime.refuse(error, reply, parameters)
            except Exception:
                pb_utils.logger.exception("a request could not be read")
                reply.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """Hang up, and end what runs."""
        self.server.close()
        self.runtime.close()
        stub_process.release()
