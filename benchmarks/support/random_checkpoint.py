"""Checkpoints with the shape of a known model and random weights.

Speed depends on shapes, not on what the weights say, and this needs no download. The tokenizer, the chat template and
the end tokens are the demo checkpoint's, whose vocabulary is smaller than the matrices' (a real checkpoint's usually
is too). So that every generated token has a text, the rows of the output layer that belong to no text token are made
so small that greedy decoding never picks them; they are read and multiplied like all others.

In a shape that says so all layers have the numbers of one, which is drawn once and written many times.

What such a model says hangs on near ties. A *continuing* checkpoint is decided: some tokens stand in a cycle, and each
is followed by the next one, or, with a known probability, by the one after that. Its embeddings are so long that what
the layers add, at their full cost, hardly turns them, and the output layer is made for them.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.support.checkpoint_shapes import DEMO, FAMILIES, SHAPES, configuration, stored_bytes, tensor_shapes

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_LAYER: Final = re.compile(r"model\.layers\.\d+\.")
_WRITERS = 8
"""Files that are written at the same time."""
_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
_DEVIATION = 0.02
_ROUTER_DEVIATION = 0.08
"""Of gpt-oss's routers: with small numbers its four experts have nearly equal shares, so that rounding, which decides
between the last and the next, would change what the model says."""
_NO_TEXT_SCALE = 2.0**-6
_CYCLE_TOKENS = 512
_CYCLE_DEVIATION = 128.0
"""Of the numbers in the embeddings of a cycle; all layers together add about a tenth of it."""
_NEXT_LOGIT = 32.0
_SKIPPING_LOGIT = 29.5
"""At temperature 1 a token of the cycle is left out with a probability of 7.6 %; no other token comes."""


def text_ids(tokenizer: Path = DEMO / "tokenizer.json") -> list[int]:
    """Ids of the tokens that are text by themselves: no special ones, no parts of characters, no spaces."""
    content = msgspec.json.decode(tokenizer.read_bytes())
    special = {token["id"] for token in content["added_tokens"]}
    # In a byte-level vocabulary printable ASCII stands for itself.
    return sorted(
        number
        for token, number in content["model"]["vocab"].items()
        if number not in special and token.isascii() and token.isprintable()
    )


def cycle(like: str) -> list[int]:
    """Tokens of a continuing checkpoint's cycle, in their order; the same for all shapes that are large enough."""
    return random.Random(0).sample(text_ids(), min(_CYCLE_TOKENS, SHAPES[like].sizes["hidden_size"]))


def write(
    like: str,
    out: Path,
    device: str | None = None,
    seed: int = 0,
    *,
    continuing: bool = False,
    layers_of: Path | None = None,
) -> int:
    """Write the checkpoint into the folder `out`; returns the bytes of its weights.

    Args:
        like: a name in `SHAPES`.
        out: a folder.
        device: on which numbers are drawn: the GPU, if there is one.
        seed: of the numbers.
        continuing: make the model continue its cycle.
        layers_of: a checkpoint of the same shape, whose layers are linked instead of drawn.

    Raises:
        ValueError: a continuing checkpoint of a shape whose layers are alike.
    """
    import torch
    from safetensors.torch import save_file

    alike, norm = SHAPES[like].alike, FAMILIES[SHAPES[like].family].norm
    if alike and continuing:
        raise ValueError(f"no continuing checkpoint can be written of {like}, whose layers are alike")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    out.mkdir(parents=True, exist_ok=True)
    config = configuration(like)
    (out / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    for name in _TOKENIZER_FILES:
        shutil.copyfile(DEMO / name, out / name)
    generator = torch.Generator(device).manual_seed(seed)
    output_layer = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"

    def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return _random(name, shape, device, generator, norm, name == output_layer)

    shards = list(_shards(tensor_shapes(like)))
    if alike:
        return _write_alike(shards, out, drawn, "quantization_config" in config)
    written = 0
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        written += sum(2 * math.prod(shape) for _, shape in shard)
        names |= {name: file for name, _ in shard}
        if layers_of is not None and all(name not in _VOCABULARY for name, _ in shard):
            (out / file).symlink_to((layers_of / file).resolve())
            continue
        tensors = {name: drawn(name, shape) for name, shape in shard}
        if continuing:
            _continue(tensors, cycle(like))
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, out / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": written}, "weight_map": names}
    (out / _INDEX).write_bytes(msgspec.json.encode(index))
    return written


def _write_alike(
    shards: list[list[tuple[str, tuple[int, ...]]]],
    out: Path,
    draw: Callable[[str, tuple[int, ...]], torch.Tensor],
    in_fp8: bool,
) -> int:
    """Write a checkpoint whose layers are all alike, several files at a time; returns its bytes of weights."""
    import torch

    drawn: dict[str, list[tuple[str, torch.Tensor]]] = {}
    names: dict[str, str] = {}

    def add(number: int, shard: list[tuple[str, tuple[int, ...]]]) -> int:
        file, of_layer = f"model-{number:05d}-of-{len(shards):05d}.safetensors", _LAYER.match(shard[0][0])
        tensors: list[tuple[str, torch.Tensor]] = []
        for name, shape in shard:
            kind = name[of_layer.end() :] if of_layer else name
            if kind not in drawn:
                made = draw(name, shape)
                parts = _in_fp8(kind, made) if in_fp8 and of_layer and made.dim() == 2 else [(kind, made)]
                drawn[kind] = [(part, tensor.cpu()) for part, tensor in parts]
            tensors += [((of_layer[0] if of_layer else "") + part, tensor) for part, tensor in drawn[kind]]
        names.update((name, file) for name, _ in tensors)
        write_safetensors(out / file, tensors)
        return sum(tensor.nbytes for _, tensor in tensors)

    written = sum(add(number, shard) for number, shard in enumerate(shards[:2], 1))  # draws what all layers have
    with ThreadPoolExecutor(_WRITERS) as pool, torch.no_grad():
        written += sum(pool.map(add, range(3, len(shards) + 1), shards[2:]))
    index = {"metadata": {"total_size": written}, "weight_map": names}
    (out / _INDEX).write_bytes(msgspec.json.encode(index))
    return written


def _in_fp8(name: str, weight: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A weight in FP8 and its scale, by their names."""
    import torch

    scale = weight.float().abs().max() / torch.finfo(torch.float8_e4m3fn).max
    return [(name, (weight.float() / scale).to(torch.float8_e4m3fn)), (f"{name}_scale", scale.reshape(1))]


def write_safetensors(path: Path, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Write tensors of the CPU without a copy of them, which `safetensors` makes."""
    import torch

    kinds = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": kinds[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            file.write(memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B"))


def room_for(like: str) -> Path:
    """A folder for checkpoints `like`, which share their layers: in memory where that has the room, else on disk."""
    needed = 1.3 * stored_bytes(like)
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > needed:
            return folder / "openai_bls-bench"
    raise OSError(f"no room for {needed / 1e9:.0f} GB: name a folder with --work")


def checkpoint_in(folder: Path, like: str, *, continuing: bool = False) -> Path:
    """The checkpoint `like` in `folder`, written unless it is there, with the layers of the other kind if that is."""
    found, other = (folder / (like + "-continuing" * kind) for kind in (continuing, not continuing))
    if not (found / _INDEX).is_file():
        write(like, found, continuing=continuing, layers_of=other if (other / _INDEX).is_file() else None)
    return found


def _shards(shapes: Iterator[tuple[str, tuple[int, ...]]]) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """A shard for each layer, and for each matrix outside of layers."""
    for _, shard in itertools.groupby(shapes, lambda one: one[0].split(".")[:3]):
        yield list(shard)


def _random(
    name: str, shape: tuple[int, ...], device: str, generator: torch.Generator, norm: float, is_output: bool
) -> torch.Tensor:
    import torch

    if "norm" in name:
        return torch.full(shape, norm, dtype=torch.bfloat16, device=device)
    deviation = _ROUTER_DEVIATION if ".router." in name else _DEVIATION
    tensor = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, deviation, generator=generator)
    if is_output:
        has_text = torch.zeros(shape[0], dtype=torch.bool)
        has_text[text_ids()] = True
        tensor[~has_text.to(device)] *= _NO_TEXT_SCALE
    return tensor


def _continue(tensors: dict[str, torch.Tensor], tokens: Sequence[int]) -> None:
    """Let the embeddings and the output layer, where they are among `tensors`, continue the cycle `tokens`."""
    import torch

    for name, tensor in tensors.items():
        if name not in _VOCABULARY:
            continue
        size = tensor.shape[1]
        drawn = torch.randn(size, len(tokens), generator=torch.Generator().manual_seed(0))
        # Orthogonal, so that a row of the output layer for one is 0 for all others.
        directions = torch.linalg.qr(drawn).Q.T.to(tensor.device) * size**0.5
        index = torch.tensor(tokens, device=tensor.device)
        if name == "lm_head.weight":
            rows = directions.roll(1, 0) * (_NEXT_LOGIT / size) + directions.roll(2, 0) * (_SKIPPING_LOGIT / size)
        else:
            rows = directions * _CYCLE_DEVIATION
        tensor[index] = rows.to(tensor.dtype)
