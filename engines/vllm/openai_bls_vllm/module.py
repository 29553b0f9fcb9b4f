"""Installed package `vllm`: import, version, device, and names that other versions may not have."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls_vllm.arguments.engine_args import installed
from openai_bls_vllm.startup.environment import count_nans, set_environment
from openai_bls_vllm.startup.load_steps import IMPORTING
from openai_bls_vllm.versions import NEWEST, OLDEST, Version, require_version

logger = logging.getLogger(__name__)


class Vllm:
    """The installed vLLM.

    Args:
        package: the imported module.
    """

    def __init__(self, package: Any) -> None:
        self.version_text = str(package.__version__)
        self.version: Version = require_version(self.version_text)

    @classmethod
    def installed(cls) -> Vllm:
        """The installed vLLM. Imports it, which takes seconds, and sets its environment variables.

        Raises:
            EngineLoadError: it is missing, broken or too old; one sentence.
        """
        if importlib.util.find_spec("vllm") is None:
            raise EngineLoadError(
                f"the engine needs vLLM {OLDEST} to {NEWEST}, which this Python does not have: run `openai-bls "
                "install-engine vllm`, or let engine_python name an interpreter that has it"
            )
        set_environment()
        logger.info(IMPORTING)
        try:
            found = cls(importlib.import_module("vllm"))
            envs = importlib.import_module("vllm.envs") if importlib.util.find_spec("vllm.envs") else None
            count_nans(getattr(envs, "environment_variables", ()))
            return found
        except EngineLoadError:
            raise
        except Exception as error:
            logger.exception("vLLM cannot be imported")
            raise EngineLoadError(f"vLLM cannot be imported: {first_line(error)}") from None

    def name(self, path: str) -> Any:
        """The object at a dotted path.

        Raises:
            EngineLoadError: this version has none.
        """
        module, _, attribute = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            raise EngineLoadError(f"vLLM {self.version_text} has no {path}, which the engine needs") from None

    def engine_args_fields(self) -> dict[str, str]:
        """Name → type (`engine_args`) of the fields of `AsyncEngineArgs`."""
        return installed(self.name("vllm.AsyncEngineArgs"))

    def online_fp8(self) -> str:
        """The name of FP8 with one scale per tensor, made of plain weights at the load: `fp8` in older versions."""
        methods = importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
        return "fp8_per_tensor" if "fp8_per_tensor" in methods else "fp8"

    @property
    def on_cpu(self) -> bool:
        """True if vLLM computes on the CPU."""
        return bool(self.name("vllm.platforms.current_platform").is_cpu())

    def device(self) -> str:
        """`cpu`, or the GPU's name and compute capability, e.g. `NVIDIA H200 (9.0)`."""
        platform = self.name("vllm.platforms.current_platform")
        if platform.is_cpu():
            return "cpu"
        capability = platform.get_device_capability()
        return f"{platform.get_device_name()} ({capability.as_version_str()})"
