"""Calibration of an engine: who does it, on how many texts, and the combinations that TensorRT-LLM fails at.

`LLM` calibrates where weights or KV cache are quantized by measured scales. ModelOpt does it for the quantizations that
are its own, and for an fp8 KV cache alone; an int8 KV cache beside other weights is left to the model's own conversion,
and an fp8 one there ends in an assertion, as do the families without such a conversion.

Sources, alike in TensorRT-LLM 0.20 to 1.2: `QuantConfig._requires_calibration` and `_requires_modelopt_quantization` in
tensorrt_llm/models/modeling_utils.py; `quantize` in tensorrt_llm/models/{llama,qwen,chatglm,baichuan,gemma}/model.py
and convert.py (phi3 has none); `load_calib_dataset` in models/convert_utils.py; `get_calib_dataloader`, `get_model` and
`quantize_and_export` in tensorrt_llm/quantization/quantize_by_modelopt.py. None of it was run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from openai_bls_tensorrt_llm.installed.interface import KvCacheDtype, Quant
from openai_bls_tensorrt_llm.recipe.model.families import Family
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT, QUANTIZATIONS

Calibrator = Literal["", "ModelOpt", "conversion"]

DEFAULT_CALIB_SIZE = 512
AWQ_CALIB_SIZE = 32
"""Most texts with `awq` and `w4a8_awq`: `quantize_and_export` takes no more."""
CALIBRATING: tuple[Quant, ...] = tuple(name for name in BUILT if QUANTIZATIONS[name].calibrates)
_CACHES: tuple[KvCacheDtype, ...] = tuple(kind for kind in get_args(KvCacheDtype) if kind != "nvfp4")

# Words in a path or name by which TensorRT-LLM takes it for a data set with columns of its own.
_COPIES: dict[Calibrator, tuple[str, ...]] = {
    "ModelOpt": ("cnn_dailymail",),
    "conversion": ("cnn_dailymail", "lambada"),
}
_WITH_IMAGES = ("scienceqa", "science_qa")


class Calibration(msgspec.Struct, frozen=True):
    """What is asked for of one checkpoint, in the flow `tensorrt`."""

    family: Family | None
    """Family of the model; None if the table has none: then what families differ in is not known."""
    quant: Quant | None
    kv_cache_dtype: KvCacheDtype
    dataset: str = ""
    """Directory or name; empty is TensorRT-LLM's own choice."""
    size: int | None = None
    """Texts that were asked for."""
    quantized_already: bool = False

    @property
    def calibrator(self) -> Calibrator:
        """Who calibrates; empty if nothing needs it."""
        if self.quantized_already:
            return ""
        if self.quant in CALIBRATING or (self.quant is None and self.kv_cache_dtype == "fp8"):
            return "ModelOpt"
        return "" if self.kv_cache_dtype == "auto" else "conversion"

    @property
    def works(self) -> bool:
        """False if the build would fail, some of them after the whole calibration."""
        family = self.family
        if self.calibrator == "ModelOpt":
            return family is None or family.modelopt is None or self.quant in family.modelopt
        if self.calibrator == "conversion":
            return self.kv_cache_dtype == "int8" and (family is None or family.int8_cache_texts is not None)
        return True

    @property
    def texts(self) -> int:
        """Texts that are run, whatever was asked for."""
        asked = self.size or DEFAULT_CALIB_SIZE
        if self.quant in ("awq", "w4a8_awq"):
            return min(asked, AWQ_CALIB_SIZE)
        fixed = self.family.int8_cache_texts if self.family is not None and self.calibrator == "conversion" else None
        return fixed or asked

    def findings(self, config: dict[str, Any], ranks: int, *, trust_remote_code: bool) -> Findings:
        """Findings on the calibration of the checkpoint with this config.json, on so many GPUs."""
        problem = self._problem()
        code = None if trust_remote_code else self._code_refusal(config)
        return Findings(
            problems=tuple(told for told in (problem, code) if told),
            refusals=tuple(self._refusals()),
            notes=(self._run(ranks), *self._notes()) if self.calibrator and not problem else (),
        )

    def _problem(self) -> str | None:
        """Reason why the build would fail, and what to give instead; None if it would not."""
        if self.works:
            return None
        whose = f" of {self.family.name} models" if self.family else ""
        options = [f"--quant {self.quant}"] if self.quant else []
        options += [f"--kv-cache-dtype {self.kv_cache_dtype}"] if self.kv_cache_dtype != "auto" else []
        caches = [kind for kind in _CACHES if self._with(kv_cache_dtype=kind).works]
        listed = (self.family.quants if self.family else ()) or BUILT
        quants = [name for name in CALIBRATING if name in listed and self._with(quant=name).works]
        ways = [f"--kv-cache-dtype {' or '.join(caches)}"] if caches else []
        ways += [f"--quant {' or '.join(quants)}"] if quants else []
        return (
            f"{' with '.join(options)} ends in an error in TensorRT-LLM's conversion{whose} (0.20 to 1.2): "
            f"give {', or '.join(ways)}"
        )

    def _refusals(self) -> Iterator[str]:
        """Options that would change nothing, or that TensorRT-LLM could not read."""
        if not self.calibrator:
            why = f"only --quant {', '.join(CALIBRATING)} and a --kv-cache-dtype other than auto are calibrated"
            why = "the checkpoint is quantized already" if self.quantized_already else why
            for option, value in (("--calib-dataset", self.dataset), ("--calib-size", self.size)):
                if value:
                    yield f"{option} {value} has no effect here: {why}; leave it out"
            return
        if self.size and self.size != self.texts and self.quant not in ("awq", "w4a8_awq"):
            yield (
                f"--calib-size {self.size} has no effect here: TensorRT-LLM calibrates an int8 KV cache of "
                f"{self.family.name if self.family else 'these'} models on {self.texts} texts; leave it out"
            )
        if self.dataset and (refused := self._refusal_of_dataset()):
            yield refused

    def _notes(self) -> Iterator[str]:
        """What to know of a calibration that works."""
        if self.size and self.size > self.texts:
            yield f"--calib-size {self.size}: TensorRT-LLM calibrates {self.quant} on {AWQ_CALIB_SIZE} texts at most"
        copy = self._copy
        if copy and Path(self.dataset).expanduser().is_dir():
            columns = "configuration 3.0.0, column `article`" if copy == "cnn_dailymail" else "column `text`"
            yield f"--calib-dataset {self.dataset} is read as a copy of {copy}, by its path: {columns}"

    def _run(self, ranks: int) -> str:
        """Clause on the run of the unquantized model."""
        what = self.quant if self.quant in CALIBRATING else f"--kv-cache-dtype {self.kv_cache_dtype}"
        where = f"on the {ranks} GPUs together" if ranks > 1 else "on the GPU"
        local = "give a local directory" if self.calibrator == "ModelOpt" else "name a local copy of cnn_dailymail"
        return (
            f"{what} runs the unquantized model {where} over {self.texts} texts first (--calib-dataset, --calib-size): "
            f"without a network {local}"
        )

    def _with(self, **changes: Any) -> Calibration:
        return msgspec.structs.replace(self, **changes)

    @property
    def _path(self) -> str:
        """As TensorRT-LLM gets it: it looks for names in the whole path."""
        path = Path(self.dataset).expanduser()
        return str(path.absolute()) if path.is_dir() else self.dataset

    @property
    def _copy(self) -> str:
        return next((name for name in _COPIES.get(self.calibrator, ()) if name in self._path), "")

    def _refusal_of_dataset(self) -> str | None:
        given = f"--calib-dataset {self.dataset}"
        if self.calibrator == "conversion":
            return (
                None
                if self._copy
                else (
                    f"{given} cannot be read: an int8 KV cache beside weights that ModelOpt does not quantize is "
                    "calibrated on cnn_dailymail or lambada, by these names or from a directory with one in its path; "
                    f"leave it out, or give --quant {', '.join(CALIBRATING)} too, which take any directory"
                )
            )
        if any(word in self._path.lower() for word in _WITH_IMAGES):
            return (
                f"{given} cannot be read: TensorRT-LLM takes it for ScienceQA, which has images; rename the directory"
            )
        if self._copy or self.dataset == "pileval" or Path(self.dataset).expanduser().is_dir():
            return None
        return f"{given} is no directory, and no data set that TensorRT-LLM knows by that name: cnn_dailymail, pileval"

    def _code_refusal(self, config: dict[str, Any]) -> str | None:
        """Refusal of running the checkpoint's own Python code; None if TensorRT-LLM goes by `trust_remote_code`.

        ModelOpt's `get_model` and Qwen's `load_hf_qwen` have it written down as true.
        """
        if not config.get("auto_map") or (self.family is not None and self.family.trust_remote_code):
            # Of the latter `families.refusal` speaks.
            return None
        if not self.calibrator and (self.family is None or self.family.tensorrt_class != "QWenForCausalLM"):
            return None
        return (
            f"{'calibrating' if self.calibrator else 'converting'} runs the Python code that comes with the checkpoint "
            "(config.json's auto_map), whatever TensorRT-LLM is told: pass --trust-remote-code if you trust it"
        )
