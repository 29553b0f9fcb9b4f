"""GGUF files as sources: found, checked, and described as a checkpoint folder by transformers' reader.

The folder has the configuration, the tokenizer and the chat template in Hugging Face's form, and the file itself as
its weights, which `weights` writes as safetensors into the engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.gguf.weights import GgufWeights, read_header
from openai_bls.core.checkpoint import GGUF_NAME
from openai_bls.core.manifest import BuildError, Dtype, first_line

WEIGHTS_NAME = GGUF_NAME
"""Name of the GGUF file in the folder that describes it."""
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_ANSWER = "Fine, thanks."


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


def describe(file: Path, folder: Path, dtype: Dtype, report: Callable[[str], None], *, as_it_is: bool = False) -> None:
    """Fill `folder` with a checkpoint's files for the GGUF file `file`.

    Args:
        file: the GGUF file.
        folder: an empty folder.
        dtype: data type of the weights; auto is the smallest that holds each of their values exactly.
        report: called with one line per stage.
        as_it_is: the weights are for llama.cpp, which reads them itself.

    Raises:
        BuildError: the file is damaged, or is nothing that transformers' reader makes a whole model of.
    """
    if parts := _PART.search(file.name):
        raise BuildError(f"{file} is one of {int(parts[1])} parts: join them with llama-gguf-split --merge first")
    read_header(file)
    report(f"reading {file.name}")
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.save_pretrained(folder)
    except Exception as error:  # what an unknown architecture or a missing key raises differs
        raise BuildError(f"transformers cannot read {file}: {first_line(error)}") from None
    if not as_it_is:
        weights = GgufWeights(file, config)
        config.dtype = weights.choose_dtype(dtype)
        config.architectures = [weights.architecture]
        report(f"{file.name}: {weights.described(config.dtype)}")
    config.save_pretrained(folder)
    ends = _end_tokens(config, tokenizer)
    generation = {"bos_token_id": config.bos_token_id, "eos_token_id": ends, "pad_token_id": config.pad_token_id}
    told = {name: value for name, value in generation.items() if value not in (None, [])}
    (folder / "generation_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2))
    (folder / WEIGHTS_NAME).symlink_to(file.resolve())
    # By these a build knows whether anything has changed since the last one.
    written = file.stat().st_mtime_ns
    for path in folder.iterdir():
        os.utime(path, ns=(written, written))


def write_weights(folder: Path, target: Path, report: Callable[[str], None]) -> None:
    """Write the weights of the GGUF file that `folder` describes into `target`, as safetensors.

    Raises:
        BuildError: the file has tensors that cannot be read.
    """
    import transformers

    file = (folder / WEIGHTS_NAME).resolve()
    config = transformers.AutoConfig.from_pretrained(folder)
    report(f"weights: converting {file.name} to safetensors")
    GgufWeights(file, config).write(target, str(config.dtype).removeprefix("torch."))


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
