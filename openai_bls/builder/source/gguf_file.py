"""GGUF files as sources: found, checked, and described as a checkpoint folder by transformers' reader.

The folder has the configuration, the tokenizer and the chat template in Hugging Face's form, and the file itself as
its weights, which llama.cpp reads.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from openai_bls.builder.placing.tokenizer import save
from openai_bls.core.checkpoint import GGUF_NAME, require_content
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.engines.capabilities import RANGES

_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_ANSWER = "Fine, thanks."
_KIND = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.add_space_prefix")
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Sampling values of a file's metadata → their names in generation_config.json."""
_LLAMA_CPP_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama.cpp samples with where a file says nothing: small models ramble at a temperature of 1 without limits."""
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "tekken")
"""Pre-tokenizers whose words are looked up whole before they are merged, which transformers' reader leaves out."""
DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Pre-tokenizers that first split a text at each digit, ① and ½ too, which transformers' reader leaves out."""


def sole_gguf(folder: Path) -> Path | None:
    """The GGUF file of a folder without other weights; None if it has none.

    Raises:
        BuildError: it has several.
    """
    files = sorted(folder.glob("*.gguf"))
    if not files or any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return None
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise BuildError(f"{folder} has several GGUF files: give one of them with its path ({names})")
    return files[0]


def describe(file: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Fill `folder` with a checkpoint's files for the GGUF file `file`.

    Args:
        file: the GGUF file.
        folder: an empty folder.
        report: called with one line per stage.

    Raises:
        BuildError: the file is damaged, or of an architecture that transformers' reader does not know.
    """
    if parts := _PART.search(file.name):
        raise BuildError(f"{file} is one of {int(parts[1])} parts: join them with llama-gguf-split --merge first")
    metadata = _read_whole(file)
    report(f"reading {file.name}")
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        if metadata.get("tokenizer.ggml.model") == "llama":
            _prefix_as_llama_cpp(tokenizer.backend_tokenizer, metadata.get("tokenizer.ggml.add_space_prefix", True))
        elif metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS:
            tokenizer.backend_tokenizer.model.ignore_merges = True
        elif metadata.get("tokenizer.ggml.pre") in DIGITS_ALONE:
            _split_digits(tokenizer.backend_tokenizer)
        save(tokenizer, folder)
    except Exception as error:  # what an unknown architecture or a missing key raises differs
        raise BuildError(f"transformers cannot read {file}: {first_line(error)}") from None
    config.save_pretrained(folder)
    ends = _end_tokens(config, tokenizer)
    generation = {"bos_token_id": config.bos_token_id, "eos_token_id": ends, "pad_token_id": config.pad_token_id}
    told = {name: value for name, value in generation.items() if value not in (None, [])} | _sampling(metadata, report)
    (folder / "generation_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2))
    (folder / GGUF_NAME).symlink_to(file.resolve())
    # By these a build knows whether anything has changed since the last one.
    written = file.stat().st_mtime_ns
    for path in folder.iterdir():
        os.utime(path, ns=(written, written))


def _read_whole(file: Path) -> dict[str, Any]:
    """The tokenizer's kind and the sampling values of a whole file, by the keys of its metadata.

    Raises:
        BuildError: the file is damaged, or the package gguf is not there to read it.
    """
    require_content(file)
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise BuildError(f"{file} is no GGUF file: it does not begin with GGUF")
    if importlib.util.find_spec("gguf") is None:
        raise BuildError(f"{file} is a GGUF file: run `pip install gguf` to have it read")
    import gguf

    try:
        fields = gguf.GGUFReader(file).fields
        return {key: fields[key].contents() for key in (*_KIND, *_SAMPLING) if key in fields}
    except Exception as error:  # numpy's and Python's own, wherever the file ends
        raise BuildError(f"{file} is cut short or damaged: {first_line(error)}") from None


def _sampling(metadata: dict[str, Any], report: Callable[[str], None]) -> dict[str, float]:
    """The file's sampling values, with llama.cpp's for those that it does not say."""
    found = {name: _sampling_value(name, metadata.get(key)) for key, name in _SAMPLING.items()}
    own = {name: value for name, value in found.items() if value is not None}
    if missing := [f"{name} {value:g}" for name, value in _LLAMA_CPP_SAMPLING.items() if name not in own]:
        report(f"sampling where a request says nothing, by llama.cpp as the file does not say: {', '.join(missing)}")
    return {**_LLAMA_CPP_SAMPLING, **own}


def _sampling_value(name: str, value: object) -> float | None:
    """The value as it was written; None if it is none that an engine takes."""
    kinds = int if name == "top_k" else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or RANGES[name].first_outside([value]) is not None:
        return None
    # A float32 of the file is the number that was written: 0.6, not 0.6000000238.
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _prefix_as_llama_cpp(backend: Tokenizer, has_prefix: bool) -> None:
    """Put a space before each text as llama.cpp does for SentencePiece's vocabularies: before one that has a space,
    too, and after each special token."""
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    backend.pre_tokenizer = None


def _split_digits(backend: Tokenizer) -> None:
    """Split a text at its numeric characters, and what is between as before."""
    alone = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([alone, backend.pre_tokenizer])


def _end_tokens(config: Any, tokenizer: Any) -> list[int]:
    """The file's end token, and the one that the chat template writes behind an answer."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception:  # a template may refuse messages as it likes, and takes its own end token then
            text = ""
        behind = tokenizer.encode(text.rpartition(_ANSWER)[2], add_special_tokens=False)
        added = tokenizer.added_tokens_decoder.get(behind[0]) if behind else None
        if added is not None and added.special:
            ends.append(behind[0])
    return list(dict.fromkeys(end for end in ends if end is not None))
