"""Ways to break the folder of a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

WEIGHTS = "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9876543\n"
Break = Callable[[Path], object]


def pointer(name: str) -> Break:
    return lambda folder: (folder / name).write_bytes(POINTER)


def renamed(name: str, pointer: str) -> Break:
    return lambda folder: (folder / name).rename(folder / pointer).write_bytes(POINTER)


def written(name: str, text: str) -> Break:
    return lambda folder: (folder / name).write_text(text)


def linked(name: str) -> Break:
    """The file `name` is a link to itself."""

    def link(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return link


def config(**changes: Any) -> Break:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def quantization(**told: Any) -> Break:
    return config(quantization_config=told)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    def rewrite(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        change(held)
        save_file(held, folder / WEIGHTS)

    return rewrite


def prefixed(prefix: str) -> Break:
    """All names of tensors, behind a prefix."""

    def rename(held: dict[str, torch.Tensor]) -> None:
        for name in list(held):
            held[prefix + name] = held.pop(name)

    return tensors(rename)


def wrapped(folder: Path) -> None:
    """The second layer's projections as peft wraps them."""

    def wrap(held: dict[str, torch.Tensor]) -> None:
        for name in [name for name in held if ".1." in name and name.endswith("proj.weight")]:
            layer = name.removesuffix(".weight")
            held[f"{layer}.base_layer.weight"] = held.pop(name)
            held[f"{layer}.lora_A.default.weight"] = torch.ones(2, 2)

    tensors(wrap)(folder)


def truncated(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) * 2 // 3])


def longer(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"more")


def header(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes((1 << 60).to_bytes(8, "little") + data[8:])


def indexed(**weight_map: str) -> Break:
    """The weights as one part, under an index that says more of it."""

    def split(folder: Path) -> None:
        part = (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
        listed = dict.fromkeys(load_file(part), part.name) | weight_map
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": listed}))

    return split


def no_index(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")


def pickled(folder: Path) -> None:
    held = load_file(folder / WEIGHTS)
    del held["model.norm.weight"]
    torch.save(held, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


class Command:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit",)


def unsafe(folder: Path) -> None:
    torch.save({"model.norm.weight": Command()}, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def unpickled(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    (folder / WEIGHTS).unlink()


def adapter(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')


def bare_adapter(folder: Path) -> None:
    adapter(folder)
    (folder / "config.json").unlink()


def larger_vocabulary(folder: Path) -> None:
    path = folder / "tokenizer.json"
    held = json.loads(path.read_text())
    held["model"]["vocab"]["beyond"] = 512
    path.write_text(json.dumps(held))
    assert Tokenizer.from_file(str(path)).token_to_id("beyond") == 512


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def parent(folder: Path) -> None:
    (folder / "checkpoint-7").mkdir()
    (folder / "config.json").rename(folder / "checkpoint-7" / "config.json")
