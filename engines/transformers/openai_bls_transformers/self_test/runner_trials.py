"""Trials of the runners that a loaded model may have: the first whose answers are right runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls_transformers.model.image_inputs import ImageInputs
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.record import EmbeddedRecord, SelfTestRecord
from openai_bls_transformers.runners import preparation
from openai_bls_transformers.runners.runner import BatchingConfig
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.self_test import records, self_test
from openai_bls_transformers.speculation.drafter import SpeculationConfig

logger = logging.getLogger(__name__)


class RunnerTrials:
    """Choices of a runner for `model`: the one that the manifest records, if that holds here, else all in order."""

    def __init__(
        self,
        model: Any,
        info: EngineInfo,
        manifest: Manifest,
        options: EngineOptions,
        images: ImageInputs | None = None,
    ) -> None:
        """Find the choices.

        Args:
            model: model on its device.
            info: facts of the engine.
            manifest: manifest of the engine.
            options: start-up options.
            images: prepares the images of prompts; None if the model takes none.

        Raises:
            EngineLoadError: there is no choice.
        """
        self.model = model
        self._images = images
        self.record: SelfTestRecord | None = None
        """Self-test of the runner that is running."""
        self.rejected: list[str] = []
        """Choices that did not do, each with the reason."""
        self._info = info
        self._manifest = manifest
        self._options = options
        self._choices = preparation.choices(model, info.max_model_len, options, takes_images=images is not None)
        tested = EmbeddedRecord.of(manifest).self_test
        recorded = records.recorded_choice(tested, model, self._choices)
        if recorded is not None:
            self.record, self._choices = tested, [recorded]

    def run(
        self,
        facts: CheckpointFacts,
        speculation: SpeculationConfig | None,
        start: Callable[[RunnerChoice, BatchingConfig], str | None],
    ) -> None:
        """Start the first runner that is right.

        Args:
            facts: facts of the checkpoint.
            speculation: speculative decoding of the engine.
            start: lets a choice run the model and tests it; returns why it does not do, if so.

        Raises:
            EngineLoadError: none is right.
        """
        loaded = self.model.config._attn_implementation
        for choice in self._choices:
            problem = preparation.set_attention(self.model, choice, self._options, loaded)
            if problem is None:
                sizes = self._manifest, self._options, self.model, choice, speculation
                problem = start(choice, preparation.batching_config(facts, *sizes))
            if problem is None:
                logger.info("runner: %s; the model's attention: %s", choice, self.model.config._attn_implementation)
                return
            self.rejected.append(f"not {choice}: {problem}")
            logger.warning("%s", self.rejected[-1])
        raise EngineLoadError(f"this model cannot be served here: {'; '.join(self.rejected)}")

    def test(self, choice: RunnerChoice, page_size: int, generate: self_test.Generate) -> str | None:
        """Compare answers of a runner with the recorded ones or the model's own; returns why they are wrong, if so.

        Raises:
            EngineLoadError: another choice would not do either.
        """
        if self.record is not None:
            records.replay(self._info, self.record, self.model.dtype, generate, self._images)
            return None
        rounding = self_test.rounding_of(self.model, choice)
        findings = self_test.find(self.model, self._info, page_size, generate, rounding, self._images)
        if findings.problem is None:
            self.record = records.make_record(self.model, choice, findings)
        return findings.problem
