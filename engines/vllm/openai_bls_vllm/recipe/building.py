"""Recipe of a vLLM engine: the checkpoint as it is, and the interpreter that loads it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from openai_bls.builder.engine_build import RecipeRequest
from openai_bls.builder.options.images import with_processor
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.builder.placing.adapters import fingerprint, lora_settings, place_adapters, read_adapters
from openai_bls.builder.placing.files import place
from openai_bls.builder.placing.weights import place_as_it_is
from openai_bls.builder.targets.folders import Prepared
from openai_bls.builder.tokenizer.processor import complete_processor
from openai_bls.core.manifest import BuildError, FileRecord, Manifest
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs
from openai_bls_vllm.arguments.engine_args import check, named
from openai_bls_vllm.recipe.images import max_images
from openai_bls_vllm.recipe.modules import place_modules
from openai_bls_vllm.recipe.options import VllmOptions
from openai_bls_vllm.recipe.plan import nodes_of, problems, survey_arguments
from openai_bls_vllm.recipe.self_test import self_test
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.survey.interpreter import Survey, ask, find_interpreter


class VllmRecipe:
    """See `Recipe`.

    Raises:
        BuildError: there is no vLLM, or it does not take what was asked for; one sentence.
    """

    def __init__(self, request: RecipeRequest) -> None:
        options, report = request.options, request.report
        checkpoint, source = request.checkpoint, request.checkpoint.folder
        own = options.own_as(VllmOptions)
        self._options, self._checkpoint, self._report = options, checkpoint, report
        if own.task != "generate" and (options.max_images or options.lora != LoraOptions()):
            raise BuildError(f"--task {own.task} is without images and adapters: leave --max-images and --lora-dir out")
        names = checkpoint.weights.names
        adapters = read_adapters(options.lora)
        folders = (Path.cwd(), options.model_repository.absolute().parent)
        python = find_interpreter(own.engine_python, os.environ, folders)
        report(f"asking {python} about its vLLM")
        survey = ask(python, survey_arguments(options, source))
        extra = check(own.extra_engine_args, named(survey.fields, survey.version), survey.version)
        self._check(survey, sum((source / name).stat().st_size for name in names))
        self._survey = survey
        self.manifest = Manifest(
            engine="vllm",
            model_name=request.model_name,
            max_model_len=survey.max_model_len,
            max_batch_size=options.batch_size,
            created=0,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
            max_images=max_images(options, source, survey, report) if own.task == "generate" else 0,
            lora=lora_settings(options.lora, adapters),
            builder={"vllm": survey.version},
            engine_python=python,
            record=VllmRecord(
                version=survey.version,
                tensor_parallel_size=own.tensor_parallel_size,
                pipeline_parallel_size=own.pipeline_parallel_size,
                quant=own.quant,
                task=own.task,
                extra_engine_args=extra,
            ).fields(),
        )
        self.configs = render_configs(engine_model(own.settings, suffix=options.name))
        built = msgspec.structs.replace(self.manifest, model_name="")
        self.key = repr((built, options.self_test, fingerprint(options.lora)))

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """See `Recipe`."""
        place_adapters(self._options.lora, prepared.lora)
        trust = self._options.trust_remote_code
        place_as_it_is(
            self._checkpoint, prepared.checkpoint, self._report, trust_remote_code=trust, force=self._options.force
        )
        if self._options.own_as(VllmOptions).task != "generate":
            place_modules(self._checkpoint.folder, prepared.checkpoint)
        # vLLM reads the tokenizer's folder as a model's: without these it logs an error and waits 2 s at each start.
        for path in (prepared.checkpoint / "config.json", *prepared.checkpoint.glob("*.py")):
            place(path, prepared.tokenizers[0] / path.name)
        images = with_processor(self.manifest.max_images, self._options, prepared.tokenizers[0], self._report)
        self.manifest = msgspec.structs.replace(self.manifest, max_images=images)
        if images:
            self._report(f"takes images, up to {images} in a prompt")
        complete_processor(prepared.tokenizers[0], prepared.checkpoint)
        if self._options.self_test and (nodes := nodes_of(self._options)) > 1:
            self._report(f"no self-test: the engine runs on {nodes} machines, and the build on one")
        elif self._options.self_test:
            self._prove(prepared)
        return {}

    def _prove(self, prepared: Prepared) -> None:
        self._report("self-test: starting the engine once, which takes minutes")
        answers = self_test(
            prepared, self.manifest, self._options.own_as(VllmOptions).settings, self._survey, self._report
        )
        record = msgspec.structs.replace(VllmRecord.of(self.manifest), answers=answers)
        self.manifest = msgspec.structs.replace(self.manifest, record=record.fields())
        self._report(f"self-test: {len(answers.prompts)} answers recorded, in {answers.dtype} on {answers.device}")

    def _check(self, survey: Survey, weight_bytes: int) -> None:
        devices = ", ".join(device.name for device in survey.devices) or survey.device_type
        self._report(f"vLLM {survey.version} on {devices}")
        if survey.refusal:
            raise BuildError(f"vLLM {survey.version} does not take {self._options.model}: {survey.refusal}")
        self._report(f"model {survey.architecture}, {survey.dtype}, {survey.max_model_len:,} tokens")
        for problem in problems(self._options, survey, weight_bytes):
            if not self._options.force:
                raise BuildError(f"{problem} (--force builds it all the same)")
            self._report(f"in spite of --force: {problem}")
