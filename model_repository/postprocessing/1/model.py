"""Triton model `postprocessing`: detokenization for the ensemble and direct users. See docs/architecture.md."""

import os
from typing import Any

from openai_bls.core import settings
from openai_bls.triton_models import pb_utils, stub_process
from openai_bls.triton_models.postprocessing.model import Postprocessing


class TritonPythonModel:
    """Answers each request with the text of its tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        # Not at the top: Triton first runs this file in a process of its own that only asks for the configuration.
        from openai_bls.transport.ipc.ping import PingServer
        from openai_bls.triton_models.repository.engines import TritonKeys
        from openai_bls.triton_models.repository.folders import ModelFolders

        stub_process.begin()
        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        address = pb_utils.model_address(args)
        self.folders = ModelFolders(args, os.getppid())
        path = self.folders.own / args["model_version"] / "tokenizer"
        try:
            self.folders.announce()
            settings.load(settings.NoSettings, pb_utils.config_parameters(args), os.environ)
            self.keys = TritonKeys(self.folders, os.environ)
            self.postprocessing = Postprocessing(path)
        except settings.SettingsError as error:
            raise pb_utils.load_error(error) from None
        except (OSError, ValueError) as error:
            raise pb_utils.load_error(f"no usable tokenizer: {error}") from None
        stub_process.settle()
        self.server = PingServer(args["model_name"], address, self.postprocessing.probe)
        self.server.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return [pb_utils.answer(request, self.postprocessing, self.keys()) for request in requests]

    def finalize(self) -> None:
        """Hang up."""
        self.folders.withdraw()
        self.server.close()
