"""Files of a checkpoint: whether each is what its name says, from first bytes and headers, never read whole."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tokenizers import Tokenizer

from openai_bls.core.checkpoint import Tensors, read_json, require_content, safetensors_header
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.engines.images.processor import PROCESSOR_FILES

# The last two say how a checkpoint is quantized, where config.json does not.
CONFIG_FILES = ("config.json", "generation_config.json", "hf_quant_config.json", "quantize_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
TOKENIZER_SOURCES = ("*.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
"""Files from which a tokenizer.json can be made."""
SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
_INDEX = ".safetensors.index.json"


def is_there(path: Path) -> bool:
    """True if there is a file at `path`.

    Raises:
        BuildError: there is a link, and it leads to itself or nowhere.
    """
    if path.is_symlink() and not path.exists():
        raise BuildError(f"{path} is a link that leads nowhere ({path.readlink()}): copy or download what it stood for")
    return path.is_file()


def check_small_files(source: Path) -> None:
    """Check all files but the weights that a build takes from `source`.

    Raises:
        BuildError: a file is empty, a git-LFS pointer, a web page, a broken link, or JSON that cannot be read.
    """
    names = {*CONFIG_FILES, *TOKENIZER_FILES, *PROCESSOR_FILES}
    if not is_there(source / "tokenizer.json"):
        names.update(path.name for pattern in TOKENIZER_SOURCES for path in source.glob(pattern))
    for path in sorted(source / name for name in names):
        if not is_there(path):
            continue
        if path.suffix == ".json" and path.name not in ("tokenizer.json", "vocab.json", "tekken.json"):
            read_json(path)
        else:
            require_content(path)


def weight_files(source: Path, single: str = SAFETENSORS) -> list[str]:
    """Names of the files that hold the weights: `single`, or else the parts that its index lists and the index; [] if
    there is neither. This is transformers' order, which does not look at an index beside `single`.

    Raises:
        BuildError: some are missing, or are not what their names say.
    """
    index = source / f"{single}.index.json"
    if is_there(source / single):
        require_content(source / single)
        return [single]
    if is_there(index):
        return [*_parts(source, index), index.name]
    stem, dot, ending = single.partition(".")
    if parts := sorted(path.name for path in source.glob(f"{stem}-*-of-*{dot}{ending}")):
        raise BuildError(f"{source} has the weights in parts ({parts[0]} ...), but {index.name} is missing")
    return []


def named_weight_files(source: Path, name: str) -> list[str]:
    """Names of the files that hold the weights where config.json's `transformers_weights` names one, or an index.

    Raises:
        BuildError: some are missing, or are not what their names say.
    """
    path = source / name
    if name != path.name or not name.endswith((".safetensors", _INDEX)) or not is_there(path):
        raise BuildError(f"{source}/config.json: transformers_weights is {name!r}, no safetensors file that is there")
    require_content(path)
    return [*_parts(source, path), name] if name.endswith(_INDEX) else [name]


def _parts(source: Path, index: Path) -> list[str]:
    listed = read_json(index).get("weight_map")
    # A name that leads elsewhere would be written elsewhere, too.
    if not isinstance(listed, dict) or not all(isinstance(n, str) and n == Path(n).name for n in listed.values()):
        raise BuildError(f"{index} has no weight_map from tensors to names of files beside it")
    names = sorted(set(listed.values()))
    missing = [name for name in names if not (source / name).is_file()]
    if missing:
        raise BuildError(f"{_some([str(source / name) for name in missing])} missing, though {index.name} names it")
    for name in names:
        require_content(source / name)
    return names


def other_weight_files(source: Path, names: Collection[str]) -> list[str]:
    """Names of the files in `source` that look like weights and are not among `names`, sorted."""
    found = {path.name for pattern in ("*.safetensors", "pytorch_model*.bin") for path in source.glob(pattern)}
    return sorted(found - {*names})


def read_headers(source: Path, names: list[str]) -> Tensors:
    """Tensors of the safetensors files among `names`, held against the index where there is one.

    Raises:
        BuildError: a file is cut off or damaged, or lacks a tensor that the index puts into it.
    """
    held: dict[str, Tensors] = {name: _read_header(source / name) for name in names if name.endswith(".safetensors")}
    for name in names:
        if name.endswith(_INDEX):
            for tensor, file in read_json(source / name)["weight_map"].items():
                if tensor not in held.get(file, ()):
                    raise BuildError(f"{source / file} has no tensor {tensor}, though {name} says so")
    return {tensor: about for tensors in held.values() for tensor, about in tensors.items()}


def _read_header(path: Path) -> Tensors:
    try:
        return safetensors_header(path)
    except (OSError, ValueError) as error:
        reason = f"{first_line(error)}; it has {path.stat().st_size:,} bytes"
        raise BuildError(f"{path} is no whole safetensors file ({reason}): download or copy it again") from None


def check_tokenizer(folder: Path, source: Path, vocab_size: int) -> list[str]:
    """Load the tokenizer.json in `folder`, made or copied from `source`, and hold it against the model's vocabulary.

    Returns:
        Added tokens that the model has no embeddings for, which some publishers leave in: none is ever generated, and a
        prompt with one is refused.

    Raises:
        BuildError: it does not load, or has ordinary tokens that the model has no embeddings for.
    """
    own = source / "tokenizer.json"
    path = own if own.is_file() else folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library's own, which is a plain Exception
        raise BuildError(f"{path} does not load as a tokenizer: {first_line(error)}") from None
    if not tokenizer.get_vocab_size():
        raise BuildError(f"{path} is a tokenizer without a single token")
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= vocab_size}
    ordinary = sorted(beyond.keys() - tokenizer.get_added_tokens_decoder().keys())
    if ordinary:
        raise BuildError(
            f"{path} is of another model: {len(ordinary)} of its tokens (ids {ordinary[0]} to {ordinary[-1]}) "
            f"are beyond the vocabulary of {vocab_size}"
        )
    return [f"{beyond[number]} ({number})" for number in sorted(beyond)]


def _some(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are"
