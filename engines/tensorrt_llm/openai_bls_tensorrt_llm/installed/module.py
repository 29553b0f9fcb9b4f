"""Installed package `tensorrt_llm`: import, version, and names that other versions may not have."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterable
from typing import Any

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.processes.process_tree import names_a_rank
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.installed.versions import KNOWN, OLDEST

IMAGES = {
    "0.10.0": "24.06",
    "0.16.0": "24.12",
    "0.19.0": "25.05",
    "0.20.0": "25.07",
    "0.21.0": "25.08",
    "1.0.0": "25.10",
    "1.0.3": "25.11",
    "1.1.0": "26.02",
    "1.2.0rc8": "26.03",
    "1.2.0": "26.03",
    "1.2.1": "26.07",
}
"""Version of TensorRT-LLM → the newest tag of nvcr.io/nvidia/tritonserver:TAG-trtllm-python-py3 that has it. None
follows 26.07: the release notes of 26.11 say that there is no such image any more."""

TELEMETRY = "TRTLLM_NO_USAGE_STATS"
"""Environment variable that keeps TensorRT-LLM, from 1.3 on, from posting its usage (pull request 12384)."""

NAME = "tensorrt_llm"


class TensorRtLlm:
    """The installed TensorRT-LLM."""

    def __init__(self, version_text: str) -> None:
        self.version_text = version_text
        self.version = Version.parse(version_text)

    @classmethod
    def installed(cls) -> TensorRtLlm:
        """Import it. Takes up to half a minute.

        Raises:
            EngineLoadError: it is missing, broken or too old; one sentence.
        """
        clear_mpi()
        # Read when it is imported. Whoever wants it sets 0.
        os.environ.setdefault(TELEMETRY, "1")
        if importlib.util.find_spec(NAME) is None:
            raise EngineLoadError(_missing())
        try:
            text = str(importlib.import_module(NAME).__version__)
            package = cls(text)
        except ModuleNotFoundError as error:
            if error.name == NAME:
                raise EngineLoadError(_missing()) from None
            raise EngineLoadError(f"TensorRT-LLM cannot be imported: the package {error.name} is missing") from None
        except ValueError:
            raise EngineLoadError(f"the installed TensorRT-LLM says that it is version {text!r}") from None
        except Exception as error:  # a missing library, a driver that is too old, an empty package of that name
            raise EngineLoadError(f"TensorRT-LLM cannot be imported: {first_line(error)}") from None
        if package.version < OLDEST:
            raise EngineLoadError(
                f"TensorRT-LLM {text} is too old: {OLDEST.major}.{OLDEST.minor} or later is needed "
                f"(images tritonserver:{IMAGES[str(OLDEST)]}-trtllm-python-py3 and later)"
            )
        return package

    def name(self, path: str) -> Any:
        """Object at a dotted path, e.g. `tensorrt_llm.llmapi.KvCacheConfig`.

        Raises:
            EngineLoadError: this version has no such thing.
        """
        module, _, attribute = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            raise EngineLoadError(
                f"TensorRT-LLM {self.version_text} has no {path}: the names of versions {KNOWN} are known here"
            ) from None

    def llm_class(self, flow: Flow) -> Any:
        """The class `LLM` of a flow."""
        if flow == "tensorrt" and self.version >= Version(1, 0):
            return self.name("tensorrt_llm._tensorrt_engine.LLM")
        return self.name("tensorrt_llm.LLM")

    def llm_fields(self, flow: Flow) -> frozenset[str]:
        """Arguments that `LLM` of a flow takes."""
        arguments = "TrtLlmArgs" if flow == "tensorrt" else "TorchLlmArgs"
        return field_names(self.name(f"tensorrt_llm.llmapi.llm_args.{arguments}"))

    def lora_config(self) -> Any:
        """The class `LoraConfig`: its own module moved in 1.1, and `llm_args` has its name throughout."""
        for module in ("llmapi.llm_args", "lora_helper"):
            with contextlib.suppress(EngineLoadError):
                return self.name(f"tensorrt_llm.{module}.LoraConfig")
        return self.name("tensorrt_llm.lora_manager.LoraConfig")

    def make(self, found: Any, **values: Any) -> Any:
        """An object of a class, whose fields are looked at first: some classes pass over what they do not know.

        Raises:
            EngineLoadError: this version's class has no such field.
        """
        self.require_fields(found.__name__, field_names(found), values)
        return found(**values)

    def require_fields(self, owner: str, fields: Iterable[str], names: Iterable[str]) -> None:
        """Raise `EngineLoadError` if one of `names` is not among `fields` of `owner`."""
        missing = sorted(set(names) - set(fields))
        if missing:
            raise EngineLoadError(
                f"TensorRT-LLM {self.version_text}: {owner} does not have {', '.join(missing)}; "
                f"the names of versions {KNOWN} are known here"
            )


def field_names(found: Any) -> frozenset[str]:
    """Constructor arguments of a class: a pydantic model, a dataclass or any other."""
    fields = getattr(found, "model_fields", None)
    if isinstance(fields, dict):
        return frozenset(fields)
    if dataclasses.is_dataclass(found):
        return frozenset(item.name for item in dataclasses.fields(found) if item.init)
    return frozenset(inspect.signature(found).parameters)


def option_names(found: Any) -> frozenset[str]:
    """Assignable options of a `PluginConfig`.

    It is a pydantic model, and up to 1.1 a dataclass whose fields lie behind properties, without the underscore.
    """
    fields = getattr(type(found), "model_fields", None)
    if isinstance(fields, dict):
        return frozenset(fields)
    names = (item.name.lstrip("_") for item in dataclasses.fields(found))
    return frozenset(name for name in names if isinstance(getattr(type(found), name, None), property))


def clear_mpi() -> None:
    """Take what mpirun left in the environment out of it.

    TensorRT-LLM spawns its ranks by MPI, which it cannot from inside another MPI job; and MPI reads these when it is
    imported.
    """
    for variable in filter(names_a_rank, list(os.environ)):
        del os.environ[variable]


def _missing() -> str:
    return (
        "TensorRT-LLM is not installed in this Python: use an image tritonserver:TAG-trtllm-python-py3, or build with "
        "--engine transformers"
    )
