"""Triton model `preprocessing`: chat template and tokenization. See docs/architecture.md."""

import os
from functools import partial
from typing import Any

from openai_bls.core import settings
from openai_bls.triton_models import pb_utils, stub_process


class TritonPythonModel:
    """Answers the ensemble (official tensors) and, beside Triton's own way, `openai_bls`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        stub_process.begin()
        # Not at the top: Triton first runs this file in a process of its own that only asks for the configuration.
        from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
        from openai_bls.triton_models.preprocessing.model import Preprocessing
        from openai_bls.triton_models.repository.engines import TritonKeys
        from openai_bls.triton_models.repository.folders import ModelFolders

        pb_utils.log_to_triton()
        pb_utils.check_config(args)
        address = pb_utils.model_address(args)
        stub_process.keep_torch_out()
        self.folders = ModelFolders(args, os.getppid())
        path = self.folders.own / args["model_version"] / "tokenizer"
        # preprocessing_small is tensorrt_llm_small's.
        engine = args["model_name"].replace("preprocessing", "tensorrt_llm", 1)
        try:
            self.folders.announce()
            known = settings.load(settings.PreprocessingSettings, pb_utils.config_parameters(args), os.environ)
            self.keys = TritonKeys(self.folders, os.environ)
            self.preprocessing = Preprocessing(path, known, lambda: self.folders.of(engine) / args["model_version"])
        except settings.SettingsError as error:
            raise pb_utils.load_error(error) from None
        except (OSError, ValueError) as error:
            raise pb_utils.load_error(f"no usable tokenizer: {error}") from None
        stub_process.settle()
        self.server = PromptExchangeServer(
            address, self.preprocessing.prepare_quickly, known.tokenizer_threads, self.preprocessing.prepare
        )
        self.server.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return [pb_utils.answer(request, self._compute(request), self.keys()) for request in requests]

    def _compute(self, request: Any) -> Any:
        return partial(self.preprocessing, outputs=frozenset(request.requested_output_names()))

    def finalize(self) -> None:
        """Hang up."""
        self.folders.withdraw()
        self.server.close()
        self.preprocessing.close()
