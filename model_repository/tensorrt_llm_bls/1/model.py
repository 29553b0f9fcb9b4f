"""Triton model `tensorrt_llm_bls`: text in, text out under the official names. See docs/architecture.md."""

import os
from typing import Any

from openai_bls.core import settings
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.triton_models import pb_utils, stub_process
from openai_bls.triton_models.endpoint import request_keys
from openai_bls.triton_models.repository.folders import ModelFolders


class TritonPythonModel:
    """Takes requests and hands them to the runtime, which answers them from its event loop."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the runtime; it waits for the engine by itself."""
        stub_process.begin()
        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        address = pb_utils.model_address(args)
        # Not at the top: Triton first runs this file in a process of its own that only asks for the configuration.
        from openai_bls.transport.ipc.ping import PingServer
        from openai_bls.triton_models.tensorrt_llm_bls.instance import Instance

        self.decoupled = pb_utils.is_decoupled(args)
        self.folders = ModelFolders(args, os.getppid())
        try:
            self.folders.announce()
            settings.load(settings.TensorRtLlmBlsSettings, pb_utils.config_parameters(args), {})
            self.instance = Instance(
                self.folders,
                args["model_version"],
                pb_utils.call_model,
                decoupled=self.decoupled,
                instances=pb_utils.instance_count(args),
            )
        except (settings.SettingsError, OSError, ValueError) as error:
            raise pb_utils.load_error(error) from None
        stub_process.settle()
        self.server = PingServer(args["model_name"], address, self.instance.probe)
        self.server.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to the runtime."""
        for request in requests:
            reply = pb_utils.ResponseStream(request, decoupled=self.decoupled)
            parameters: dict[str, Any] = {}
            runtime = None
            try:
                parameters = pb_utils.request_parameters(request)
                runtime = self.instance.runtime()
                key = request_keys.check_key(self.instance.api_keys, parameters)
                # On `generate` it is a parameter like any other, in seconds.
                timeout = parameters.get("timeout", pb_utils.request_timeout_s(request))
                runtime.accept(pb_utils.only_inputs(request), reply, parameters, key, timeout, reply.requested)
            except ApiError as error:
                if runtime is None:
                    reply.fail(error)
                else:
                    runtime.refuse(error, reply, parameters)
            except Exception:
                pb_utils.logger.exception("a request could not be read")
                reply.fail(EngineError("The request could not be read; see the server's log."))

    def finalize(self) -> None:
        """Hang up, and end what runs."""
        self.folders.withdraw()
        self.server.close()
        self.instance.close()
        stub_process.release()
