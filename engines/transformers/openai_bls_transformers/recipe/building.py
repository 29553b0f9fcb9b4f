"""Recipe of the engine of transformers, which is the checkpoint as it is."""

from __future__ import annotations

import msgspec

from openai_bls.builder.checkpoint.kind import quantized
from openai_bls.builder.engine_build import RecipeRequest
from openai_bls.builder.placing.adapters import fingerprint, lora_settings, place_adapters, read_adapters
from openai_bls.builder.placing.weights import place_weights
from openai_bls.builder.recipe import max_model_len
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.checkpoint import text_config
from openai_bls.core.manifest import BuildError, EngineSetupError, FileRecord, KvCacheSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs
from openai_bls_transformers.recipe.advice import vllm_advice
from openai_bls_transformers.recipe.engine_build import EmbeddedOptions
from openai_bls_transformers.recipe.images import TEXT_ALONE, max_images, refuse_without_text
from openai_bls_transformers.recipe.self_test import self_test
from openai_bls_transformers.record import EmbeddedRecord


class EmbeddedRecipe:
    """See `Recipe`."""

    def __init__(self, request: RecipeRequest) -> None:
        options, checkpoint, model_name, _, report = request
        self._quant = quant = options.own_as(EmbeddedOptions).quant
        self._options, self._checkpoint, self._report = options, checkpoint, report
        longest = max_model_len(options, checkpoint.facts)
        if quant and quantized(checkpoint):
            raise BuildError(f"--quant {quant}: the checkpoint is quantized already, and served as it is")
        self.manifest = Manifest(
            engine="transformers",
            model_name=model_name,
            max_model_len=longest,
            max_batch_size=options.batch_size,
            created=0,
            dtype=options.dtype,
            record=EmbeddedRecord(quant).fields(),
            max_images=max_images(options, checkpoint, report),
            kv_cache=KvCacheSettings(max_tokens_in_kv_cache=options.max_tokens_in_kv_cache),
            trust_remote_code=options.trust_remote_code,
            lora=lora_settings(options.lora, read_adapters(options.lora)),
        )
        self.configs = render_configs(engine_model(EngineSettings(), suffix=options.name))
        built = (msgspec.structs.replace(self.manifest, model_name=""), options.self_test, fingerprint(options.lora))
        self.key = repr(built)

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """See `Recipe`."""
        place_adapters(self._options.lora, prepared.lora)
        try:
            self._fill(prepared)
        except EngineSetupError as error:
            if not self.manifest.max_images or self._options.max_images:
                raise
            # Nobody asked for images: what was served without them before there were any still is.
            trust = self._options.trust_remote_code
            refuse_without_text(self._checkpoint, str(error), trust_remote_code=trust)
            self._report(f"images are refused: {error}")
            self.manifest = msgspec.structs.replace(self.manifest, max_images=0)
            for placed in prepared.checkpoint.glob("*.safetensors*"):
                placed.unlink()
            self._fill(prepared)
        return {}

    def _fill(self, prepared: Prepared) -> None:
        images = bool(self.manifest.max_images)
        if images:
            VisionProcessor(prepared.tokenizers[0])  # Raises if it cannot serve images.
        place_weights(
            self._checkpoint,
            prepared.checkpoint,
            self._report,
            trust_remote_code=self._options.trust_remote_code,
            force=self._options.force,
            images=images,
        )
        if images:
            self._report(
                f"a vision-language model ({self._checkpoint.facts.architecture}): takes images, at most "
                f"{self.manifest.max_images} in a prompt ({TEXT_ALONE})"
            )
        if self._options.self_test:
            self._prove(prepared)

    def _prove(self, prepared: Prepared) -> None:
        self._report("self-test")
        outcome = self_test(prepared, self.manifest, cap=self._options.max_model_len is None)
        if outcome.max_model_len:
            self._report(f"context of {outcome.max_model_len} tokens: {outcome.context}")
            self.manifest = msgspec.structs.replace(self.manifest, max_model_len=outcome.max_model_len)
        for line in outcome.rejected:
            self._report(f"self-test: {line}")
        passed = outcome.record
        assert passed is not None
        how = f"{passed.runner} with attention {passed.attention}, in {passed.dtype} on {passed.device}"
        self._report(f"self-test: passed by {how}")
        if advice := vllm_advice(text_config(self._checkpoint.config), passed):
            self._report(advice)
        if (distance := passed.quant_distance) is not None:
            self._report(
                f"self-test: {self._quant} changes the log-probabilities of {distance.tokens} tokens of a text "
                f"by {distance.mean:.4f} in the mean and {distance.max:.2f} at most; the likeliest token stays in "
                f"{distance.same_greedy:.1%}"
            )
        if passed.fp8_noise is not None:
            self._report(
                "self-test: rounding to FP8 what is computed changes log-probabilities by "
                f"{passed.fp8_noise:.1%} of what sets the likeliest token apart from the mean"
            )
        record = EmbeddedRecord(self._quant, passed)
        self.manifest = msgspec.structs.replace(self.manifest, record=record.fields())
