"""Maker of a family's checkpoint: a tiny model, the files of its tokenizer, and what it was taught to say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, decoders
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from openai_bls.output.detect import HARMONY, TOOL_FORMATS
from openai_bls.output.harmony import MARKERS
from tests.unit.triton_models.preprocessing import tokenizer_families
from tests_transformers.architectures.checkpoint import spread, tiny_config
from tests_transformers.architectures.table import CASES
from tests_transformers.zoo import templates
from tests_transformers.zoo.table import Family

MAX_LENGTH = 1024
"""Tokens of prompt and output: a letter is often one."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Sum",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        },
    }
]
ARGUMENTS = {"a": 7, "b": "x"}
THOUGHTS = "I do"
ANSWER = "It is 你."
_CALL = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
_STEPS = 4000
_MARGIN = 1.0


class Lesson(NamedTuple):
    """A turn that a model was taught to say."""

    asked: list[dict[str, Any]]
    turn: dict[str, Any]
    tools: list[dict[str, Any]] | None = None


def lessons(family: Family) -> Iterator[Lesson]:
    """Turns with everything that a family's models write: a call, an answer to its result, and one after thoughts."""
    if family.calls:
        asked: list[dict[str, Any]] = [{"role": "user", "content": "Add 7"}]
        called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        yield Lesson(asked, called, TOOLS)
        result = {"role": "tool", "tool_call_id": _CALL["id"], "content": "7x"}
        yield Lesson([*asked, called, result], {"role": "assistant", "content": ANSWER}, TOOLS)
    if family.thoughts:
        thinking = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHTS}
        yield Lesson([{"role": "user", "content": "Say it"}], thinking)


def make_checkpoint(folder: Path, family: Family) -> None:
    """A family's folder, as a hub has it."""
    written = _write_tokenizer(folder, family)
    case, taught = CASES[family.architecture], list(lessons(family))
    # What is taught changes the output layer, and must not change what goes in.
    changes = {**case.changes, **({"tie_word_embeddings": False} if taught else {})}
    sizes = {"vocab_size": len(written), "max_length": MAX_LENGTH, "eos_token_id": written.eos_token_id}
    config = tiny_config(case.model_type, changes, **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    spread(model, case.seed)
    model.generation_config.do_sample = False
    # Of classes for summaries: a last token in place of the model's own.
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    if taught:
        # By the configuration that lies there now: it says which class the tokenizer is of.
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        _teach(model, [_tokens(tokenizer, lesson) for lesson in taught])
        model.save_pretrained(folder)


def _write_tokenizer(folder: Path, family: Family) -> Any:
    style = templates.STYLES[family.style]
    form = templates.template(style, family.calls, family.thoughts)
    special = {*templates.markers(templates.turns_text(style)), *_special(family)}
    original = tokenizer_families.tokenizer(family.shape)
    content = json.loads(original.backend_tokenizer.to_str())
    # A vocabulary of bytes was trained with these as special tokens, which they are in no checkpoint.
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    backend = Tokenizer.from_str(json.dumps(content))
    backend.decoder = _decoder(content, family.shape)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in sorted(special)])
    others = [token for token in templates.markers(form) if token not in special]
    backend.add_tokens([AddedToken(token, normalized=False) for token in others])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=original.bos_token,
        eos_token=style.eos,
        unk_token=content["model"].get("unk_token"),
        chat_template=form,
    )
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": family.tokenizer_class}))
    return tokenizer


def _special(family: Family) -> frozenset[str]:
    """Markers of calls and thoughts that are special tokens in the family's checkpoints."""
    if family.calls == HARMONY:
        return MARKERS
    calls = TOOL_FORMATS[family.calls].special if family.calls else frozenset[str]()
    return calls | (templates.reasoning_of(family.thoughts).special if family.thoughts else frozenset[str]())


def _decoder(content: dict[str, Any], shape: str) -> Any:
    """What published files of this kind of vocabulary have."""
    model = content["model"]
    if model["type"] == "BPE" and model["byte_fallback"]:
        steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        return decoders.Sequence(
            steps if shape in ("gemma", "metaspace never") else [*steps, decoders.Strip(" ", 1, 0)]
        )
    kinds = {"BPE": decoders.ByteLevel, "Unigram": decoders.Metaspace, "WordPiece": decoders.WordPiece}
    return kinds[model["type"]]() if model["type"] in kinds else None


def script(tokenizer: Any, lesson: Lesson) -> tuple[str, str]:
    """The prompt of a lesson and what the model is to say, with its end token, as its template writes them."""
    prompt = tokenizer.apply_chat_template(lesson.asked, tools=lesson.tools, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([*lesson.asked, lesson.turn], tools=lesson.tools, tokenize=False)
    assert whole.startswith(prompt), "a prompt is not the beginning of the conversation that goes on from it"
    said = whole[len(prompt) :]
    return prompt, said[: said.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)]


def _tokens(tokenizer: Any, lesson: Lesson) -> tuple[list[int], list[int]]:
    prompt, said = script(tokenizer, lesson)
    ids, whole = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, prompt + said))
    if whole[: len(ids)] != ids:  # a word goes on across the prompt's end
        return ids, tokenizer.encode(said, add_special_tokens=False)
    return ids, whole[len(ids) :]


def _teach(model: Any, scripts: Sequence[tuple[list[int], list[int]]]) -> None:
    """Fit the output layer so that the model says each text after its prompt."""
    head = model.get_output_embeddings()
    states: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: states.append(given[0][0]))
    with torch.inference_mode():
        for prompt, said in scripts:
            model(torch.tensor([[*prompt, *said]]), use_cache=False)
    hook.remove()
    kept = [state.clone()[len(prompt) - 1 : -1] for state, (prompt, _) in zip(states, scripts, strict=True)]
    given, wanted = torch.cat(kept), torch.tensor([token for _, said in scripts for token in said])
    weight = torch.nn.Parameter(head.weight.detach().clone())
    optimizer = torch.optim.Adam([weight], lr=0.02)
    for _ in range(_STEPS):
        scores = given @ weight.T + (0 if head.bias is None else head.bias.detach())
        optimizer.zero_grad()
        cross_entropy(scores, wanted).backward()
        optimizer.step()
        right = scores.gather(1, wanted[:, None])[:, 0]
        if (right - scores.scatter(1, wanted[:, None], float("-inf")).max(1).values).min() > _MARGIN:
            break
    with torch.no_grad():
        head.weight.copy_(weight)
