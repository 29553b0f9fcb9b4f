"""One `tensorrt_llm_bls` instance: its runtime, which begins once `openai_bls` is there, whose tokenizer it shares."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from openai_bls.core.errors import OverloadedError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.triton_models.bls.calls import BlockingCall
from openai_bls.triton_models.repository import engines
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.tensorrt_llm_bls.runtime import Runtime

logger = logging.getLogger(__name__)


class Instance:
    """One instance of the model.

    Args:
        folders: folders of the models.
        version: its own version.
        call_model: makes a BLS call, for a `preprocessing` that is not ours.
        decoupled: a request may have any number of responses, else one.
        instances: number of instances in this server.
        environ: environment of the model.

    Raises:
        SettingsError: the settings of `openai_bls` cannot be used.
        OSError: a file of `openai_bls` cannot be read.
        ValueError: a file of `openai_bls` is not what it should be.
    """

    def __init__(
        self,
        folders: ModelFolders,
        version: str,
        call_model: BlockingCall,
        *,
        decoupled: bool,
        instances: int,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folders = folders
        self._version = version
        self._call_model = call_model
        self._decoupled = decoupled
        self._instances = instances
        self._environ = environ
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self.api_keys = ApiKeys()
        """Keys of which requests must have one; those of a runtime."""
        if folders.settled or self._can_begin():
            self._begin()

    def runtime(self) -> Runtime:
        """The runtime.

        Raises:
            OverloadedError: `openai_bls`, or the engine, is not there yet, or cannot be used.
        """
        with self._lock:
            if self._runtime is None and self._can_begin():
                try:
                    self._begin()
                except (OSError, ValueError) as error:
                    logger.error("%s", error)
            if self._runtime is None:
                raise OverloadedError("The models openai_bls and tensorrt_llm are not loaded (yet); try again later.")
            return self._runtime

    def probe(self) -> None:
        """Have the runtime, if there is one, take a turn."""
        if self._runtime is not None:
            self._runtime.probe()

    def close(self) -> None:
        """End what runs."""
        if self._runtime is not None:
            self._runtime.close()

    def _can_begin(self) -> bool:
        """True if the models whose settings count here are there."""
        return all(self._folders.find(model) is not None for model in ("openai_bls", engines.ENGINE))

    def _begin(self) -> None:
        folder = self._folders.of("openai_bls")
        limits = engines.openai_bls_settings(folder, self._environ)
        self.api_keys = engines.triton_keys(limits)
        backend = engines.backends(self._folders, folder, self._version)[0]
        runtime = Runtime(
            backend,
            owner=os.getppid(),
            call_model=self._call_model,
            exclude_input_default=engines.excludes_input(backend, self._environ),
            decoupled=self._decoupled,
            limits=limits,
            api_keys=self.api_keys,
            instances=self._instances,
            observer=Observer.of(limits),
        )
        runtime.start()
        self._runtime = runtime
