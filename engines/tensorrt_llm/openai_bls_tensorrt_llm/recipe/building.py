"""Recipe of TensorRT-LLM engines: plan, worker process, engine files.

For the flow `tensorrt` a worker process converts and builds. For `pytorch` nothing is built: the checkpoint is placed
as it is.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.engine_build import RecipeRequest
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import with_processor
from openai_bls.builder.placing.adapters import fingerprint, place_adapters
from openai_bls.builder.placing.weights import place_as_it_is
from openai_bls.builder.targets.folders import Prepared
from openai_bls.builder.targets.selection import BuildTarget
from openai_bls.builder.tokenizer.processor import complete_processor
from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.manifest import BuildError, FileRecord, Manifest, record
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, Flow, Version
from openai_bls_tensorrt_llm.installed.versions import require_flow
from openai_bls_tensorrt_llm.legacy import cpp_backend
from openai_bls_tensorrt_llm.legacy.cpp_backend import (
    GRAMMAR_VOCABULARY,
    cpp_settings,
    grammar_vocabulary,
)
from openai_bls_tensorrt_llm.recipe.model import chatglm
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.planning import Request, as_gpu, plan
from openai_bls_tensorrt_llm.recipe.quantizations import QUANTIZATIONS
from openai_bls_tensorrt_llm.recipe.survey import log_file, survey
from openai_bls_tensorrt_llm.recipe.worker.failures import TAIL_LINES, classify, require_disk
from openai_bls_tensorrt_llm.recipe.worker.main import encode
from openai_bls_tensorrt_llm.recipe.worker.process import run_worker
from openai_bls_tensorrt_llm.recipe.worker.progress import LogReader, Progress, Step
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord


class TensorRtLlmRecipe:
    """Recipe of an engine for TensorRT-LLM, or of a checkpoint for its PyTorch flow.

    Raises:
        BuildError: TensorRT-LLM is not installed, or what was asked for cannot be built here.
    """

    def __init__(self, asked: RecipeRequest) -> None:
        options, checkpoint, model_name, target, report = asked
        self._options, self._checkpoint, self._report = options, checkpoint, report
        self._own = options.own_as(TensorRtLlmOptions)
        # Refuses a checkpoint without them before TensorRT-LLM is asked.
        _ = checkpoint.weights
        self._survey = survey(self._own.extra_llm_api_options)
        gpus = self._survey.gpus
        installed = self._survey.architectures, self._survey.arguments_refusal
        request = request_of(options, checkpoint.config, checkpoint.folder, *installed)
        self._plan = plan(request, Version.parse(self._survey.version), as_gpu(gpus[0]) if gpus else None)
        require_flow(self._plan.engine.flow, self._plan.version, self._survey.version)
        self._check()
        self.manifest = self._manifest(model_name)
        self.configs = self._configs(target)
        self.key = self._key()

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """See `Recipe`."""
        place_adapters(self._options.lora, prepared.lora)
        if self._plan.engine.flow == "pytorch":
            trust = self._options.trust_remote_code
            place_as_it_is(
                self._checkpoint, prepared.checkpoint, self._report, trust_remote_code=trust, force=self._options.force
            )
            images = with_processor(self.manifest.max_images, self._options, prepared.tokenizers[0], self._report)
            self.manifest = msgspec.structs.replace(self.manifest, max_images=images)
            if images:
                complete_processor(prepared.tokenizers[0], prepared.checkpoint)
            return {}
        self._require_disk(prepared)
        with self._workspace(prepared) as workspace:
            spec = self._spec(prepared.engine, workspace)
            config = self._checkpoint.config
            if config.get("model_type") == "chatglm":
                spec = msgspec.structs.replace(spec, model=chatglm.readable(spec.model, config, spec.workspace))
            progress = Progress(self._report)
            with contextlib.closing(progress):
                _run(spec, progress)
                _require_engine(prepared.engine, spec)
                if self._own.backend == "cpp":
                    # Of the copy: it may have end tokens that its tokenizer's code knows of.
                    facts = read_checkpoint(prepared.checkpoint)
                    vocabulary = grammar_vocabulary(prepared.tokenizers[0], facts.eos_token_ids)
                    (prepared.engine / GRAMMAR_VOCABULARY).write_bytes(vocabulary)
                return _records(prepared.engine, progress)

    def _check(self) -> None:
        made, own = self._plan, self._own
        gpus = Counter(gpu.name for gpu in self._survey.gpus)
        counted = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in gpus.items())
        engine = f"flow {made.engine.flow}, {made.engine.max_seq_len:,} tokens"
        self._report(f"TensorRT-LLM {self._survey.version}, {engine}, {counted or 'no GPU'}")
        for note in made.notes:
            self._report(f"note: {note}")
        if own.backend == "cpp" and self._options.lora.adapters:
            self._report(
                "note: with --backend cpp adapters are no models of their own: clients of tensorrt_llm name them by "
                "lora_task_id and bring lora_weights and lora_config"
            )
        if made.refusals:
            raise BuildError(made.refusals[0])
        if made.engine.flow == "tensorrt":
            self._require_gpus(own.tensor_parallel_size * own.pipeline_parallel_size)
        if made.problems and not self._options.force:
            raise BuildError(made.problems[0])
        for problem in made.problems:
            self._report(f"in spite of --force: {problem}")

    def _require_gpus(self, ranks: int) -> None:
        found = len(self._survey.gpus)
        if not found:
            raise BuildError(
                "there is no GPU here, and a TensorRT engine is built on one of the kind that it is to run on: build "
                "on such a machine (a container needs --gpus), make it visible (CUDA_VISIBLE_DEVICES), or only plan, "
                "with --dry-run"
            )
        if found < ranks:
            raise BuildError(
                f"an engine of {ranks} ranks is built on as many GPUs, and this process sees {found}: lower --tp-size "
                "or --pp-size, or make more visible (CUDA_VISIBLE_DEVICES)"
            )

    def _manifest(self, model_name: str) -> Manifest:
        made, own = self._plan, self._own
        gpu = self._survey.gpus[0] if self._survey.gpus else None
        return Manifest(
            engine="tensorrt_llm",
            model_name=model_name,
            max_model_len=made.engine.max_seq_len,
            max_batch_size=made.engine.max_batch_size,
            created=0,
            dtype=self._options.dtype,
            trust_remote_code=self._options.trust_remote_code,
            max_images=made.max_images,
            builder={"tensorrt_llm": self._survey.version},
            record=TensorRtLlmRecord(
                version=self._survey.version,
                flow=made.engine.flow,
                backend=own.backend,
                gpu=gpu.name if gpu else "",
                compute_capability=gpu.compute_capability if gpu else "",
                tensor_parallel_size=own.tensor_parallel_size,
                pipeline_parallel_size=own.pipeline_parallel_size,
                quant=own.quant or "",
                kv_cache_dtype=own.kv_cache_dtype,
                max_input_len=made.engine.max_input_len,
                max_num_tokens=made.engine.max_num_tokens,
                max_beam_width=own.max_beam_width,
                gather_logits=own.gather_logits,
                plugins=own.plugins,
                extra_llm_api_options=made.extra_llm_api_options,
            ).fields(),
            lora=made.lora,
        )

    def _configs(self, target: BuildTarget) -> dict[str, str]:
        settings, own, suffix = self._plan.settings, self._own, self._options.name
        if own.backend == "python":
            return render_configs(engine_model(settings, own.queue, suffix))
        cpp = cpp_settings(self.manifest, settings, target.version_dir.absolute(), own.cpp_parameters)
        return render_configs(cpp_backend.engine_model(self.manifest, cpp, own.queue, suffix))

    def _key(self) -> str:
        """All that goes into the build: the settings do not, nor does the name."""
        own, spec = self._own, self._spec(Path(), Path())
        built = msgspec.structs.replace(spec, model=Path(), lora_dirs=(), workers=1)
        adapters = fingerprint(self._options.lora)
        return repr((msgspec.structs.replace(self.manifest, model_name=""), own.multiple_profiles, built, adapters))

    def _spec(self, output: Path, workspace: Path) -> BuildSpec:
        made, own = self._plan, self._own
        dataset = Path(own.calib_dataset).expanduser()
        return BuildSpec(
            model=self._checkpoint.folder.absolute(),
            output=output.absolute(),
            workspace=workspace.absolute(),
            max_batch_size=made.engine.max_batch_size,
            max_input_len=made.engine.max_input_len,
            max_seq_len=made.engine.max_seq_len,
            max_num_tokens=made.engine.max_num_tokens,
            max_beam_width=own.max_beam_width,
            dtype=self._options.dtype,
            tensor_parallel_size=own.tensor_parallel_size,
            pipeline_parallel_size=own.pipeline_parallel_size,
            quant_algorithm=QUANTIZATIONS[own.quant].algorithm if own.quant else "",
            kv_cache_dtype=own.kv_cache_dtype,
            calib_dataset=str(dataset.absolute()) if own.calib_dataset and dataset.is_dir() else own.calib_dataset,
            calib_size=made.calib_size,
            workers=own.workers,
            plugins=own.plugins,
            multiple_profiles=own.multiple_profiles,
            gather_logits=own.gather_logits,
            lora_dirs=tuple(folder.absolute() for folder in self._options.lora.adapters.values()),
            lora_target_modules=self._plan.lora.target_modules,
            max_lora_rank=self._plan.lora.max_lora_rank,
            trust_remote_code=self._options.trust_remote_code,
        )

    def _require_disk(self, prepared: Prepared) -> None:
        found = self._plan.estimate
        if found is None:
            return
        # TensorRT-LLM builds the engine in a folder of its choice and copies it.
        if self._own.workspace is None:
            require_disk(prepared.work, 2 * found.weights)
            return
        self._own.workspace.mkdir(parents=True, exist_ok=True)
        require_disk(self._own.workspace, found.weights)
        require_disk(prepared.engine, found.weights)

    @contextlib.contextmanager
    def _workspace(self, prepared: Prepared) -> Iterator[Path]:
        if self._own.workspace is None:
            yield prepared.work
            return
        folder = Path(tempfile.mkdtemp(prefix="openai_bls-engine-", dir=self._own.workspace))
        try:
            yield folder
        finally:
            if self._own.keep_workspace:
                self._report(f"the workspace stays at {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)


def request_of(
    options: BuildOptions,
    config: dict[str, Any],
    source: Path,
    architectures: Mapping[Flow, frozenset[str]] | None,
    arguments_refusal: str,
) -> Request:
    """Request for a plan of the checkpoint in `source`, which need not be there, with its config.json."""
    return Request(
        options=options,
        config=config,
        folder=source.absolute() if source.is_dir() else None,
        architectures=architectures,
        arguments_refusal=arguments_refusal,
    )


def _run(spec: BuildSpec, progress: Progress) -> None:
    spec_file = spec.workspace / "spec.json"
    spec_file.write_bytes(encode(spec))
    reader = LogReader(spec.tensor_parallel_size * spec.pipeline_parallel_size, spec.calib_size)
    lines: deque[str] = deque(maxlen=TAIL_LINES)

    def on_line(line: str) -> None:
        lines.append(line)
        step = reader.read(line)
        if step is not None:
            progress.show(step)

    with log_file() as log:
        code = run_worker(["build", str(spec_file)], log, on_line, progress.tick)
        if code != 0:
            raise BuildError(f"{classify(code, lines, spec)} (log: {log})")


def _require_engine(folder: Path, spec: BuildSpec) -> None:
    ranks = spec.tensor_parallel_size * spec.pipeline_parallel_size
    needed = ["config.json", *(f"rank{rank}.engine" for rank in range(ranks))]
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise BuildError(f"the build ended without an error and without {', '.join(missing)}: this is a bug")


def _records(folder: Path, progress: Progress) -> dict[str, FileRecord]:
    """Sizes and hashes of all files in `folder`, whatever their size."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    records = {}
    for number, path in enumerate(paths):
        progress.show(Step("hash", number, len(paths)))
        records[path.relative_to(folder).as_posix()] = record(path)
    return records
