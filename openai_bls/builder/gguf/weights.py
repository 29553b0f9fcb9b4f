"""Weights of a GGUF file, dequantized tensor by tensor into safetensors by transformers' own rules.

One tensor is in memory at a time, and safetensors' header is known before: names and shapes come from the model that
transformers builds without storage. Where transformers puts one tensor together from several (mixtures of experts),
or has a newer reader of its own, it reads the whole file itself.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from openai_bls.builder.checkpoint.parameter_count import meta_model
from openai_bls.core.checkpoint import require_content
from openai_bls.core.manifest import BuildError, Dtype, first_line
from openai_bls.launcher import progress

_SAFETENSORS_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_HALF_TYPES = {"F16": "float16", "BF16": "bfloat16"}
_MOST_OF_FLOAT16 = 65504
_STRETCH = 1 << 22
"""Values that are checked and converted at once."""


def read_header(file: Path) -> Any:
    """The `gguf.GGUFReader` of a file that is whole; the last one is kept, since each takes seconds.

    Raises:
        BuildError: it is not, or the package gguf is not installed.
    """
    require_content(file)
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise BuildError(f"{file} is no GGUF file: it does not begin with GGUF")
    if importlib.util.find_spec("gguf") is None:
        raise BuildError(f"{file} is a GGUF file: run `pip install gguf` to have it read")
    try:
        return _reader(file, file.stat().st_mtime_ns)
    except Exception as error:  # numpy's and Python's own, wherever the file ends
        raise BuildError(f"{file} is cut short or damaged: {first_line(error)}") from None


@functools.lru_cache(maxsize=1)
def _reader(file: Path, _written: int) -> Any:
    import gguf

    return gguf.GGUFReader(file)


class GgufWeights:
    """Tensors of a GGUF file as parameters of a model of transformers."""

    def __init__(self, file: Path, config: Any) -> None:
        """Find each parameter's tensor.

        Raises:
            BuildError: a parameter has none, or the file has tensors that transformers' reader drops, or is none.
        """
        from transformers import modeling_gguf_pytorch_utils as of_transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        reader = read_header(file)
        self._file, self._reader = file, reader
        kind = reader.get_field("general.architecture").contents()
        self.architecture = str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ""))
        if not self.architecture:
            raise BuildError(f"{file} is no causal language model that transformers knows ({kind})")
        model = meta_model(config, self.architecture)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._streamed = not _has_newer_reader(kind) and kind != "gpt2"
        self._names: dict[str, str] = {}
        if _has_newer_reader(kind):
            return
        self._processor = of_transformers.TENSOR_PROCESSORS.get(kind, of_transformers.TensorProcessor)(config.to_dict())
        # Parameters with all experts of a layer have no suffix.
        held = {re.sub(r"(_exps)\.weight$", r"\1", tensor.name) for tensor in reader.tensors}
        # The names of most models follow from those of the whole; a look into each of its modules takes seconds.
        whole = SimpleNamespace(config=config, state_dict=model.state_dict, named_children=dict)
        for one in (whole, model):
            self._names = of_transformers.get_gguf_hf_weights_map(one, self._processor)
            if held <= self._names.keys():
                break
        if any(name.endswith("_exps") for name in held):
            self._streamed = False
        _refuse_what_is_dropped(file, reader, kind, held - self._names.keys())
        missing = self._shapes.keys() - {self._names[name] for name in held & self._names.keys()}
        if missing:
            raise BuildError(f"{file} has no tensor for {len(missing)} parameters, such as {min(missing)}")

    def choose_dtype(self, wanted: Dtype) -> str:
        """`wanted`; of auto the half type of a file without quantized tensors if it holds all, else float32."""
        if wanted != "auto":
            return wanted
        types = {tensor.tensor_type.name for tensor in self._reader.tensors} - {"F32"}
        half = _HALF_TYPES.get(next(iter(types), "")) if len(types) == 1 else None
        if half is None or not self._streamed:
            return "float32"
        of_f32 = (tensor for tensor in self._reader.tensors if tensor.tensor_type.name == "F32")
        return half if all(_is_exact(self._values(tensor), half) for tensor in of_f32) else "float32"

    def described(self, dtype: str) -> str:
        """The number formats before and after, for a line of the build."""
        sizes: Counter[str] = Counter()
        for tensor in self._reader.tensors:
            sizes[tensor.tensor_type.name] += tensor.n_bytes
        quantized = [name for name, _ in sizes.most_common() if name not in ("F32", "F16", "BF16")]
        size = sum(map(math.prod, self._shapes.values())) * (4 if dtype == "float32" else 2)
        is_exact = dtype == "float32" or dtype == self.choose_dtype("auto")
        exact = "which holds each value exactly" if is_exact else "rounded"
        how = f"{', '.join(quantized)} dequantized to {dtype}" if quantized else f"as {dtype}"
        return f"{how}, {exact} ({size / 1e6:,.0f} MB)"

    def write(self, target: Path, dtype: str) -> None:
        """Write `target`/model.safetensors, or the parts that transformers makes of it.

        Raises:
            BuildError: a tensor has a type that cannot be read, or values that `dtype` cannot hold.
        """
        if not self._streamed:
            self._write_whole(target, dtype)
            return
        size = 4 if dtype == "float32" else 2
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        tensors = [tensor for tensor in self._reader.tensors if self._names.get(tensor.name) in self._shapes]
        for tensor in tensors:
            name = self._names[tensor.name]
            end = at + size * math.prod(self._shapes[name])
            header[name] = {
                "dtype": _SAFETENSORS_TYPES[dtype], "shape": self._shapes[name], "data_offsets": [at, end]
            }  # fmt: skip
            at = end
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with (target / "model.safetensors").open("wb") as file, progress.bar("dequantizing", at) as bar:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors:
                values = self._values(tensor)
                name = self._names[tensor.name]
                if values.shape != self._shapes[name]:
                    raise BuildError(
                        f"{self._file}: {tensor.name} is {list(values.shape)} where {name} is "
                        f"{list(self._shapes[name])}"
                    )
                for start in range(0, values.size, _STRETCH):
                    stretch = values.reshape(-1)[start : start + _STRETCH]
                    if not np.isfinite(stretch).all() or (dtype == "float16" and abs(stretch).max() > _MOST_OF_FLOAT16):
                        raise BuildError(f"{self._file}: {tensor.name} has values that {dtype} does not hold")
                    bar.advance(file.write(_as(stretch, dtype).data))
                del values, stretch  # before the next tensor takes its memory

    def _values(self, tensor: Any) -> npt.NDArray[np.float32]:
        """A tensor as transformers reads it, in float32."""
        from gguf import dequantize

        weights = np.empty(tuple(map(int, reversed(tensor.shape))), np.float32)
        # A few rows at a time: the package takes three times the result's memory.
        step = max(1, _STRETCH // weights.shape[-1]) if weights.ndim > 1 else weights.size
        try:
            for start in range(0, len(weights), step):
                weights[start : start + step] = dequantize(tensor.data[start : start + step], tensor.tensor_type)
        except NotImplementedError:
            raise BuildError(
                f"{self._file}: {tensor.name} is {tensor.tensor_type.name}, which the package gguf cannot read"
            ) from None
        found = self._processor.process(weights=weights, name=tensor.name, tensor_key_mapping=self._names)
        return np.ascontiguousarray(found.weights, dtype=np.float32)

    def _write_whole(self, target: Path, dtype: str) -> None:
        import transformers

        options: dict[str, Any] = {"gguf_file": self._file.name, "dtype": dtype, "output_loading_info": True}
        if hasattr(transformers, "GgufConfig"):
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(self._file.parent, **options)
            missing = sorted(info["missing_keys"])
            if not missing:
                model.hf_quantizer = None  # it refuses to be saved, though nothing is quantized any more
                model.config.__dict__.pop("quantization_config", None)
                model.save_pretrained(target)
        except Exception as error:  # transformers' own, those of gguf, and that accelerate is not installed
            shapes = "its tensors have other shapes than its configuration" if "mismatched" in str(error) else ""
            raise BuildError(f"transformers cannot read {self._file}: {shapes or first_line(error)}") from None
        if missing:
            raise BuildError(f"{self._file} has no tensor for {len(missing)} parameters, such as {missing[0]}")


def _has_newer_reader(kind: str) -> bool:
    """Whether transformers reads this architecture by the reader that came with 5.20 or so, not by the one before."""
    try:
        from transformers.integrations.gguf import is_gguf_arch_supported
    except ImportError:
        return False
    return bool(is_gguf_arch_supported(kind))


def _refuse_what_is_dropped(file: Path, reader: Any, kind: str, dropped: set[str]) -> None:
    """Refuse what transformers' reader leaves out without a word: the model would be another."""
    scaling = reader.get_field(f"{kind}.rope.scaling.type")
    if scaling is not None and scaling.contents() != "none":
        raise BuildError(
            f"{file} has RoPE scaling ({scaling.contents()}), which transformers' reader of GGUF files drops"
        )
    if dropped:
        what = "RoPE scaling" if min(dropped).startswith("rope_") else "weights"
        raise BuildError(
            f"{file} has {what} that transformers' reader of GGUF files drops ({', '.join(sorted(dropped)[:3])})"
        )


def _is_exact(values: npt.NDArray[np.float32], dtype: str) -> bool:
    if dtype == "float16":
        return bool((values.astype(np.float16) == values).all())
    return not (values.view(np.uint32) & 0xFFFF).any()


def _as(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False)
    bits = values.view(np.uint32)
    # To the nearest, halves to even.
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
