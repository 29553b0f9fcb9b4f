"""Page on an installed TensorRT-LLM: whether signatures, options, config.pbtxt and two tokens are as recorded."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
TEMPLATES = Path("/app/all_models/inflight_batcher_llm")
"""Official model repository in the images."""
TENSORS = HERE / "tensors.json"
_CHECKPOINT = ROOT / "demo" / "checkpoint"
_PROMPT = "What is machine learning?"
_TENSOR_KEYS = ("data_type", "dims", "reshape", "optional", "allow_ragged_batch")

Difference = tuple[bool, str]
"""Whether it may break a call, and what it is."""


class NotHereError(Exception):
    """What a part of the page needs is not on this machine; the message says what."""


class Part(NamedTuple):
    """Part of the page."""

    name: str
    about: str
    differences: Callable[[], Iterator[Difference]]


def write(parts: list[Part], out: Callable[[str], object]) -> bool:
    """Write the page; True if nothing differs that may break a call."""
    skipped, lines, same = [], [], True
    for part in parts:
        try:
            found = list(part.differences())
        except NotHereError as reason:
            skipped.append(part.name)
            out(f"{part.name:14} not looked at: {reason}\n")
            continue
        serious = sum(1 for one, _ in found if one)
        same = same and not serious
        out(f"{part.name:14} {f'{serious} differ' if serious else 'pass'} ({part.about})\n")
        lines += [f"{'differs' if one else 'more   '}  {text}\n" for one, text in found]
    for line in lines:
        out(line)
    verdict = "pass: nothing differs that is recorded" if same else "it differs from what is recorded"
    out(f"\n{verdict}{'; not looked at: ' if skipped else ''}{', '.join(skipped)}\n")
    return same


def options(table: dict[str, dict[str, str]]) -> Iterator[Difference]:
    """Differences of the classes that --extra-llm-api-options goes into."""
    args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    for name, fields in table.items():
        found = getattr(args, name, None)
        if found is None:
            yield True, f"{name} is missing in tensorrt_llm.llmapi.llm_args"
            continue
        for key, kind in fields.items():
            field = found.model_fields.get(key)
            if field is None:
                yield True, f"{name}.{key} is missing"
                continue
            has, wanted = _choices(field.annotation), kind.strip("[]?!").split("|")
            lost = sorted(set(wanted) - has) if has and len(wanted) > 1 else []
            if lost:
                yield True, f"{name}.{key} does not take {', '.join(lost)}"


def _choices(annotation: Any) -> set[str]:
    if typing.get_origin(annotation) is Literal:
        return {str(value) for value in typing.get_args(annotation)}
    return {choice for inner in typing.get_args(annotation) for choice in _choices(inner)}


def official(version: str) -> dict[str, dict[str, Any]]:
    """Recorded config.pbtxt by model, of a version; empty where none is recorded."""
    table, wanted = json.loads(TENSORS.read_text()), _version(version)
    if version not in table["versions"]:
        return {}
    found: dict[str, dict[str, Any]] = table["models"]
    for entry in found.values():
        sources = [source for since, source in entry["source"].items() if _version(since) <= wanted]
        entry["source"] = sources[-1]
        for side in ("inputs", "outputs"):
            entry[side] = [
                tensor
                for tensor in entry[side]
                if _version(tensor.get("since", version)) <= wanted <= _version(tensor.get("until", version))
            ]
    return found


def _version(text: str) -> list[int]:
    return [int(number) for number in text.split(".")]


def configs(version: str, templates: Path) -> Iterator[Difference]:
    """Differences of the official config.pbtxt files: tensors, and keys of their parameters."""
    if not templates.is_dir():
        raise NotHereError(f"there is no {templates} (--models DIR)")
    recorded_models = official(version)
    if not recorded_models:
        raise NotHereError(f"no config.pbtxt of {version} is in {TENSORS.name}")
    for model, entry in recorded_models.items():
        path = templates / model / "config.pbtxt"
        if not path.is_file():
            yield True, f"{model}/config.pbtxt is missing"
            continue
        text = re.sub(r"#.*", "", path.read_text())
        for section in ("input", "output"):
            yield from _tensors(f"{model}: {section}", entry[f"{section}s"], tensors(text, section))
        keys = set(re.findall(r'\bkey\s*:\s*"([^"]+)"', text))
        recorded = set(entry["parameters"])
        yield from ((True, f"{model}: parameter {key} is missing") for key in sorted(recorded - keys))
        if recorded:
            yield from ((False, f"{model}: parameter {key} is new") for key in sorted(keys - recorded))


def _tensors(where: str, ours: list[dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> Iterator[Difference]:
    for tensor in ours:
        found = theirs.get(tensor["name"])
        if found is None:
            yield True, f"{where} {tensor['name']} is missing"
            continue
        for key in _TENSOR_KEYS:
            if tensor.get(key) != found.get(key):
                yield True, f"{where} {tensor['name']}: {key} is {found.get(key)}, recorded {tensor.get(key)}"
    for name in theirs.keys() - {tensor["name"] for tensor in ours}:
        yield not theirs[name].get("optional", False) and " input" in where, f"{where} {name} is new"


def tensors(text: str, section: str) -> dict[str, dict[str, Any]]:
    """Tensors of the sections `input [...]` or `output [...]` of a config.pbtxt template, by name."""
    found: dict[str, dict[str, Any]] = {}
    for start in re.finditer(rf"(?m)^\s*{section}\s*:?\s*\[", text):
        for whole in _blocks(text[start.end() :]):
            reshape = re.search(r"reshape\s*:?\s*\{\s*shape\s*:\s*\[([^\]]*)\]", whole)
            block = re.sub(r"reshape\s*:?\s*\{[^}]*\}", "", whole)
            values = dict(re.findall(r'(\w+)\s*:\s*"?(\$\{\w+\}|[^"\s,\[\]}]+)', block))
            tensor: dict[str, Any] = {"data_type": values["data_type"].removeprefix("TYPE_")}
            dims = re.search(r"dims\s*:\s*\[([^\]]*)\]", block)
            tensor["dims"] = _numbers(dims[1]) if dims else []
            if reshape:
                tensor["reshape"] = _numbers(reshape[1])
            tensor |= {key: True for key in ("optional", "allow_ragged_batch") if values.get(key) == "true"}
            found[values["name"]] = tensor
    return found


def _blocks(text: str) -> Iterator[str]:
    """The `{...}` of a list that has just begun, up to its end."""
    depth, begin = 0, 0
    for place, char in enumerate(text):
        if char == "{":
            begin = place if depth == 0 else begin
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                yield text[begin + 1 : place]
        elif char == "]" and depth == 0:
            return


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def two_tokens() -> Iterator[Difference]:
    """Differences of the first two greedy tokens of the demo checkpoint from those of transformers."""
    try:
        from openai_bls.core.engine_types import SamplingParams
        from openai_bls_tensorrt_llm.installed import api
        from openai_bls_tensorrt_llm.installed.interface import LlmOptions, Sampling
    except ImportError as error:
        raise NotHereError(f"openai_bls cannot be imported ({error}): python3 docker/install.py .") from None
    installed = api.installed()
    if not installed.gpus():
        raise NotHereError("there is no GPU")
    if installed.version.major < 1:
        raise NotHereError("0.20 has no PyTorch flow")
    if not (_CHECKPOINT / "config.json").is_file():
        raise NotHereError(f"there is no {_CHECKPOINT.relative_to(ROOT)}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt: list[int] = AutoTokenizer.from_pretrained(_CHECKPOINT)(_PROMPT).input_ids
    wanted = LlmOptions(_CHECKPOINT, "pytorch", max_batch_size=1, max_model_len=64, max_tokens_in_paged_kv_cache=2048)
    llm = installed.open(wanted)

    async def run() -> list[int]:
        sampling = Sampling(max_tokens=2, end_id=None, pad_id=0, params=SamplingParams(temperature=0))
        output = installed.generate(llm, prompt, sampling, None)
        async for _ in output:
            pass
        return list(output.outputs[0].token_ids)

    try:
        found = asyncio.run(run())
    finally:
        llm.shutdown()
    import torch

    model = AutoModelForCausalLM.from_pretrained(_CHECKPOINT)
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=2, min_new_tokens=2, do_sample=False)
    expected = whole[0, len(prompt) :].tolist()
    if found != expected:
        yield True, f"two tokens: {found} came, transformers gives {expected}"
