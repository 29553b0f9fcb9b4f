"""llama.cpp's C API, as the wheel of xllamacpp exports it.

The wheel's extension module holds all of llama.cpp and exports its functions. Its Python side is a server, which
samples by itself and takes no stop tokens or seeds of 64 bits; so it is not imported, and the functions are called by
ctypes, which lets go of the interpreter lock meanwhile. Structures change from release to release: one release is
known, and the defaults that it fills in are compared before any is used.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import sys
from ctypes import c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from openai_bls.core import installing
from openai_bls.core.manifest import EngineLoadError

logger = logging.getLogger(__name__)

PACKAGE = "xllamacpp"
RELEASE = "2026.10.11549"
"""Release whose structures are declared here; the last number is llama.cpp's own build."""
INSTALL = installing.with_engine("llama_cpp")

_OPENMP = "libgomp.so.1"
_ERROR_LEVEL = 4
_LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind, names in groups for name in names.split()]


class ModelParams(ctypes.Structure):
    """`struct llama_model_params`."""

    _fields_ = _fields(
        (c_void_p, "devices tensor_buft_overrides"),
        (c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        (c_void_p, "tensor_split progress_callback progress_callback_user_data kv_overrides"),
        (c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    )


class ContextParams(ctypes.Structure):
    """`struct llama_context_params`."""

    _fields_ = _fields(
        (c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        (c_int32, "n_threads n_threads_batch ctx_type rope_scaling_type pooling_type attention_type flash_attn_type"),
        (c_float, "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow"),
        (c_uint32, "yarn_orig_ctx"),
        (c_float, "defrag_thold"),
        (c_void_p, "cb_eval cb_eval_user_data"),
        (c_int32, "type_k type_v"),
        (c_size_t, "moe_cache_size"),
        (c_void_p, "abort_callback abort_callback_data"),
        (c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        (c_void_p, "samplers"),
        (c_size_t, "n_samplers"),
        (c_void_p, "ctx_other"),
    )


class Batch(ctypes.Structure):
    """`struct llama_batch`."""

    _fields_ = _fields((c_int32, "n_tokens"), (c_void_p, "token embd pos n_seq_id seq_id logits"))


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LogCallback, c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_n_ctx_train": (c_int32, [c_void_p]),
    "llama_model_desc": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "llama_model_has_encoder": (c_bool, [c_void_p]),
    "llama_model_is_diffusion": (c_bool, [c_void_p]),
    "llama_model_is_hybrid": (c_bool, [c_void_p]),
    "llama_model_is_recurrent": (c_bool, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_state_seq_get_size": (c_size_t, [c_void_p, c_int32]),
    "llama_state_seq_get_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_state_seq_set_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (c_void_p, [c_void_p]),
}
"""Function → the types of its result and of its arguments."""


def problem() -> str:
    """Reason why the wheel cannot be used here; empty if it can."""
    if found := _package_problem():
        return found
    if missing := _missing_instructions():
        return f"{PACKAGE} is built for processors with {missing}, which this one does not have"
    if sys.platform == "linux" and not _openmp_of_torch() and ctypes.util.find_library("gomp") is None:
        return f"{PACKAGE} needs the library {_OPENMP}: install the system's package libgomp1"
    return ""


def _missing_instructions() -> str:
    """The first set of instructions that the wheel's x86-64 build uses and this processor lacks; empty if none."""
    try:
        flags = set(re.findall(r"\S+", Path("/proc/cpuinfo").read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return ""
    if platform.machine() != "x86_64":
        return ""
    return next((name for name in ("avx2", "fma", "f16c", "bmi2") if name not in flags), "")


def _package_problem() -> str:
    if importlib.util.find_spec(PACKAGE) is None:
        return f"the package {PACKAGE} is not installed: {INSTALL}"
    found = importlib.metadata.version(PACKAGE)
    if found != RELEASE:
        return f"{PACKAGE} {found} is installed, and {RELEASE} alone is known to this release: {INSTALL}"
    return ""


def _openmp_of_torch() -> list[Path]:
    """libgomp.so.1 as PyTorch's wheel brings it, for systems without; PyTorch is not imported."""
    return [path for folder in _folders("torch") if (path := folder / "lib" / _OPENMP).is_file()]


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec is not None else None) or ()]


def _load_openmp() -> None:
    """Load the OpenMP library that llama.cpp's names, where the system has none: then it is found by its name."""
    try:
        ctypes.CDLL(_OPENMP)
    except OSError:
        for path in _openmp_of_torch():
            ctypes.CDLL(str(path))


@functools.cache
def load() -> Any:
    """llama.cpp's functions, declared; loaded once.

    Raises:
        EngineLoadError: the wheel is missing, is another release, or does not load; one sentence.
    """
    if found := _package_problem():
        raise EngineLoadError(f"the engine llama_cpp cannot be loaded: {found}")
    # Threads that spin while they wait take the core from the thread that they wait for, wherever cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    paths = [path for folder in _folders(PACKAGE) for path in folder.glob(f"{PACKAGE}.*.so")]
    try:
        if sys.platform == "linux":
            _load_openmp()
        library = ctypes.CDLL(str(paths[0]))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError, IndexError) as error:
        raise EngineLoadError(f"{PACKAGE} {RELEASE} does not load: {error}") from None
    _require_known_defaults(library)
    library.llama_log_set(_TO_LOG, None)
    library.llama_backend_init()
    return library


def _require_known_defaults(library: Any) -> None:
    """Check that the structures are those declared: values that llama.cpp sets stand where they are looked for."""
    model, context = library.llama_model_default_params(), library.llama_context_default_params()
    found = (
        (model.main_gpu, model.tensor_split, model.vocab_only, model.use_extra_bufts),
        (context.n_batch, context.n_ubatch, context.n_seq_max, context.pooling_type, context.defrag_thold),
        (context.type_k, context.type_v, context.abort_callback, context.offload_kqv, context.samplers),
    )
    if found != ((0, None, False, True), (2048, 512, 1, -1, -1.0), (1, 1, None, True, None)):
        raise EngineLoadError(f"the llama.cpp in {PACKAGE} is not that of {RELEASE}: {INSTALL}")


class _Error:
    """First error that llama.cpp has logged since it was asked; its functions return none."""

    text = ""


def _log(level: int, text: bytes, _user_data: object) -> None:
    if level == _ERROR_LEVEL:
        line = text.decode(errors="replace").strip()
        _Error.text = _Error.text or line
        logger.warning("llama.cpp: %s", line)


_TO_LOG = _LogCallback(_log)
"""Kept for as long as llama.cpp may call it."""


def take_error() -> str:
    """The first error that llama.cpp has logged since the last call, without the name of its function."""
    found, _Error.text = _Error.text, ""
    return found.partition(": ")[2] or found
