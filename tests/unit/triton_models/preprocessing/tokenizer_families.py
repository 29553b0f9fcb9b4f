"""Small tokenizers of the families that models have, each with a chat template in its family's style."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.unit.output.text_tokenizers import CORPUS

_DEMO = Path(__file__).resolve().parents[4] / "demo" / "checkpoint"

_LOOP = "{% for m in messages %}"
CHATML = f"{_LOOP}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}<|im_start|>assistant\n"
_LLAMA3 = (
    f"<|begin_of_text|>{_LOOP}<|start_header_id|>{{{{ m.role }}}}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
_LLAMA2 = (
    f"{_LOOP}{{% if m.role == 'user' %}}{{{{ bos_token }}}}[INST] {{{{ m.content }}}} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
_GEMMA = (
    f"<bos>{_LOOP}<start_of_turn>{{{{ m.role }}}}\n{{{{ m.content }}}}<end_of_turn>\n"
    "{% endfor %}<start_of_turn>model\n"
)
_DEEPSEEK = f"{_LOOP}<｜{{{{ m.role }}}}｜>{{{{ m.content }}}}{{% endfor %}}<｜assistant｜>{{# <｜user｜> #}}"
_PHI = f"{_LOOP}<|{{{{ m.role }}}}|>\n{{{{ m.content }}}}<|end|>\n{{% endfor %}}<|assistant|>\n{{# <|user|> #}}"
_BARE = f"{_LOOP}{{{{ m.content }}}}{{{{ sep_token }}}}{{% endfor %}}"

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Family(NamedTuple):
    """How the tokenizers of a family are made.

    `special` and `other` are added tokens; a name alone has no flags. The first special one is the BOS, the second the
    EOS, which is the separator too.
    """

    template: str
    special: Sequence[str | AddedToken]
    other: Sequence[str | AddedToken] = ()
    model: Callable[[], Any] = models.BPE
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Callable[[Tokenizer], Any] | None = None


def _byte_level(*steps: Any, **options: Any) -> Any:
    space = options.pop("add_prefix_space", False)
    last = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=not steps, **options)
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _around(before: str, after: str) -> Callable[[Tokenizer], Any]:
    """Post-processor that adds special tokens, empty ones left out."""

    def make(tokenizer: Tokenizer) -> Any:
        pairs = [(token, tokenizer.token_to_id(token)) for token in (before, after) if token]
        single = " ".join(part for part in (before, "$A", after) if part)
        return processors.TemplateProcessing(single=single, special_tokens=pairs)

    return make


def _byte_fallback() -> Any:
    return models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)


def _metaspace(scheme: str) -> Family:
    step = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return Family(_LLAMA2, ["<s>", "</s>", "<unk>"], [], _byte_fallback, None, step, post_processor=_around("<s>", ""))


_CHATML_TOKENS = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
_TOOLS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

FAMILIES: dict[str, Family] = {
    "gpt2": Family(CHATML, _CHATML_TOKENS, pre_tokenizer=_byte_level()),
    "gpt2 with a prefix space": Family(CHATML, _CHATML_TOKENS, pre_tokenizer=_byte_level(add_prefix_space=True)),
    "qwen2": Family(
        CHATML, _CHATML_TOKENS, _TOOLS, normalizer=normalizers.NFC(), pre_tokenizer=_byte_level(_split(_GPT4))
    ),
    "llama3": Family(
        _LLAMA3,
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
        [f"<|reserved_special_token_{at}|>" for at in range(20)],
        lambda: models.BPE(ignore_merges=True),
        pre_tokenizer=_byte_level(_split(_GPT4)),
        post_processor=_around("<|begin_of_text|>", ""),
    ),
    "llama2": Family(
        _LLAMA2,
        ["<s>", "</s>", "<unk>"],
        ["▁<tool>"],
        _byte_fallback,
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        post_processor=_around("<s>", ""),
    ),
    "metaspace first": _metaspace("first"),
    "metaspace always": _metaspace("always"),
    "metaspace never": _metaspace("never"),
    "gemma": Family(
        _GEMMA,
        ["<bos>", "<eos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
        ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁"],
        _byte_fallback,
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        _around("<bos>", ""),
    ),
    "deepseek": Family(
        _DEEPSEEK,
        ["<｜begin｜>", "<｜end｜>", "<｜user｜>", "<｜assistant｜>"],
        pre_tokenizer=_byte_level(_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(_TEKKEN)),
    ),
    "tekken": Family(
        _LLAMA2,
        ["<s>", "</s>", "[INST]", "[/INST]"],
        pre_tokenizer=_byte_level(_split(_TEKKEN)),
        post_processor=_around("<s>", ""),
    ),
    "phi3": Family(
        _PHI,
        ["<s>", *(AddedToken(token, rstrip=True) for token in ("</s>", "<|end|>", "<|user|>", "<|assistant|>"))],
        [AddedToken("<mask>", lstrip=True, normalized=False), "<unk>"],
        _byte_fallback,
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
    "t5": Family(
        _BARE,
        ["<pad>", "</s>", "<unk>"],
        ["<extra_id_0>"],
        models.Unigram,
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        _around("", "</s>"),
    ),
    "bert": Family(
        _BARE,
        ["[CLS]", "[SEP]", "[UNK]"],
        [AddedToken("naïve café")],
        lambda: models.WordPiece(unk_token="[UNK]"),
        normalizers.BertNormalizer(lowercase=True, strip_accents=True),
        pre_tokenizers.BertPreTokenizer(),
        _around("[CLS]", "[SEP]"),
    ),
    "words": Family(
        _BARE,
        ["<s>", "</s>", "<unk>"],
        [AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False), AddedToken("fox", normalized=True)],
        lambda: models.WordLevel(unk_token="<unk>"),
        normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()]),
        pre_tokenizers.Whitespace(),
    ),
}


def _added(tokens: Sequence[str | AddedToken], *, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=special) if isinstance(token, str) else token for token in tokens
    ]


def _trainer(tokenizer: Tokenizer, special: list[AddedToken]) -> Any:
    kind = type(tokenizer.model).__name__
    options: dict[str, Any] = {"vocab_size": 900, "special_tokens": special, "show_progress": False}
    if kind == "Unigram":
        options |= {"vocab_size": 250, "unk_token": "<unk>"}
    if kind == "BPE" and tokenizer.model.byte_fallback:
        options["special_tokens"] = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    elif kind == "BPE":
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return getattr(trainers, f"{kind.replace('BPE', 'Bpe')}Trainer")(**options)


@cache
def tokenizer(name: str) -> Any:
    """A tokenizer of transformers, of a family or the demo's."""
    if name == "demo":
        return AutoTokenizer.from_pretrained(_DEMO, local_files_only=True)
    family = FAMILIES[name]
    special = _added(family.special, special=True)
    made = Tokenizer(family.model())
    for part in ("normalizer", "pre_tokenizer"):
        if (step := getattr(family, part)) is not None:
            setattr(made, part, step)
    made.train_from_iterator(CORPUS * 2, _trainer(made, special))
    made.add_special_tokens(special)
    made.add_tokens(_added(family.other, special=False))
    if family.post_processor is not None:
        made.post_processor = family.post_processor(made)
    bos, eos = (token.content for token in special[:2])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=bos, eos_token=eos, sep_token=eos, chat_template=family.template
    )


NAMES = (*FAMILIES, "demo")


def added_contents(made: Any) -> Iterator[str]:
    """Spellings of all added tokens."""
    for token in made.backend_tokenizer.get_added_tokens_decoder().values():
        yield token.content
