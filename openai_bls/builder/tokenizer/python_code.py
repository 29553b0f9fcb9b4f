"""Converter of tokenizers that come as Python code: a tokenizer.json from the data next to the code, which never runs.

Baichuan, ChatGLM 2 and 3, GLM-4 in its first form and the first Qwen bring a class of their own, which reads a
SentencePiece model or a list of byte pairs ranked as for tiktoken. Everything here works from a tokenizer.json, so one
is made from the same data and compared, on texts that show what differences there are, with the library the code uses.

What the code does beside that, chat prompts and further special tokens, is known for the families below and for no
others. Sources: tokenization_baichuan.py and generation_utils.py of Baichuan2-7B-Chat; tokenization_chatglm.py of
chatglm2-6b, chatglm3-6b and glm-4-9b-chat; tokenization_qwen.py and qwen_generation_utils.py of Qwen-7B-Chat.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, AnyStr

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import BuildError

_BPE = 2
_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "▁"

_GLM_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN_PATTERN = _GLM_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


class Made(msgspec.Struct, frozen=True):
    """Stand-in for a tokenizer in Python."""

    tokenizer: Tokenizer
    config: dict[str, Any]
    """Content of tokenizer_config.json."""
    chat_template: str
    """Chat template where the checkpoint has none; empty is none."""
    end_tokens: tuple[int, ...] = ()
    """Token ids that end an answer, besides those of generation_config.json."""


def make(source: Path) -> Made | None:
    """A tokenizer.json's content for the checkpoint in `source`; None if its family is not one of those known.

    Raises:
        BuildError: the family is known, and its data is missing, unreadable, or comes out otherwise.
    """
    config = read_json(source / "config.json")
    match config.get("model_type"):
        case "baichuan":
            return _baichuan(source)
        case "chatglm":
            return _chatglm(source)
        case "qwen":
            return _qwen(source)
    return None


def from_sentencepiece(path: Path, special: Mapping[str, int] | None = None) -> Tokenizer:
    """The tokenizer of a SentencePiece model, compared with SentencePiece's own encoding of `SAMPLES`.

    Args:
        path: the model file.
        special: further special tokens by their ids, which must follow those of the model or be pieces of it.

    Raises:
        BuildError: sentencepiece is not installed, the file is no model, or the two differ.
    """
    try:
        import sentencepiece

        # sentencepiece's own wants a newer protobuf than gRPC has.
        from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2
    except ImportError:
        raise BuildError(
            f"{path} is a SentencePiece model: run `pip install sentencepiece` to have it converted"
        ) from None
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
        original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # protobuf's own, and SentencePiece's RuntimeError
        raise BuildError(f"{path} is no SentencePiece model: {error}") from None
    tokenizer = _from_proto(proto)
    _add(tokenizer, special or {}, path)
    _compare(tokenizer, original.encode, path)
    return tokenizer


def from_ranks(path: Path, pattern: str, special: Mapping[str, int], *, nfc: bool) -> Tokenizer:
    """The tokenizer of a list of byte pairs in tiktoken's form, compared with tiktoken's own encoding of `SAMPLES`.

    Args:
        path: a file of lines, each a token in base64 and its rank.
        pattern: regular expression by which text is split first.
        special: ids of the special tokens.
        nfc: whether text is normalized to Unicode's form C first.

    Raises:
        BuildError: tiktoken is not installed, the file is no such list, or the two differ.
    """
    try:
        import tiktoken
    except ImportError:
        raise BuildError(f"{path} is a list of byte pairs: run `pip install tiktoken` to have it converted") from None
    ranks = _ranks(path)
    names = _byte_names()

    def written(token: bytes) -> str:
        return "".join(names[byte] for byte in token)

    vocabulary = {written(token): rank for token, rank in ranks.items()}
    merges = [(written(first), written(second)) for first, second in _merges(ranks, ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=True))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, special, path)
    encoding = tiktoken.Encoding(path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(special))

    def encode(text: str) -> list[int]:
        ids: list[int] = encoding.encode(unicodedata.normalize("NFC", text) if nfc else text)
        return ids

    _compare(tokenizer, encode, path)
    return tokenizer


def _baichuan(source: Path) -> Made:
    # Written as text in chats here, so they must be found in text.
    path = _file(source, "tokenizer.model")
    tokenizer = from_sentencepiece(path)
    config = _tokenizer_config(source)
    roles = [token for token in ("<reserved_106>", "<reserved_107>") if tokenizer.token_to_id(token) is not None]
    if len(roles) == 2:
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in roles])
    return Made(tokenizer, config, _chat_template("baichuan") if len(roles) == 2 else "")


def _chatglm(source: Path) -> Made:
    path = _file(source, "tokenizer.model")
    config = _tokenizer_config(source)
    named = _named_ids(config)
    if _is_ranks(path):
        if not named:
            raise BuildError(f"{source}/tokenizer_config.json has no added_tokens_decoder")
        return Made(from_ranks(path, _GLM_PATTERN, named, nfc=False), config, "")
    code = source / "tokenization_chatglm.py"
    roles = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    third = "<|user|>" in named or (code.is_file() and "<|user|>" in code.read_text(encoding="utf-8"))
    first = from_sentencepiece(path).get_vocab_size()
    tokens = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *(roles if third else [])]
    special = {token: first + number for number, token in enumerate(tokens)}
    for token, number in special.items():
        if named.get(token, number) != number:
            raise BuildError(
                f"{source}: {token} has the id {named[token]} in tokenizer_config.json and {number} by its code"
            )
    tokenizer = from_sentencepiece(path, special)
    template = _chat_template("chatglm3" if third else "chatglm2")
    # The model goes on with the next speaker where its answer ends.
    ends = (special["<|user|>"], special["<|observation|>"]) if third else ()
    return Made(tokenizer, config, template, ends)


def _qwen(source: Path) -> Made:
    path = _file(source, "qwen.tiktoken")
    first = len(_ranks(path))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
    special = {token: first + number for number, token in enumerate(tokens)}
    tokenizer = from_ranks(path, _QWEN_PATTERN, special, nfc=True)
    config = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", **_tokenizer_config(source)}
    return Made(tokenizer, config, _chat_template("qwen"), (special["<|im_end|>"],))


def _from_proto(proto: Any) -> Tokenizer:
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    scores = [(piece.piece, piece.score) for piece in proto.pieces]
    if trainer.model_type != _BPE:
        raise BuildError("only SentencePiece models of the kind bpe can be converted")
    vocabulary = {piece: number for number, (piece, _) in enumerate(scores)}
    model = models.BPE(
        vocab=vocabulary,
        # The pair whose whole has the best score is joined first.
        merges=_merges({piece: -score for piece, score in scores}, vocabulary),
        unk_token=trainer.unk_piece,
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
    )
    tokenizer = Tokenizer(model)
    steps: list[Any] = []
    if rules.precompiled_charsmap:
        # Looked up by what a reader sees as one character, of which "\r\n" is one here and two in SentencePiece.
        steps += [normalizers.Replace("\r\n", "\n\n"), normalizers.Precompiled(rules.precompiled_charsmap)]
    if rules.remove_extra_whitespaces:
        # Spaces alone, not tabs and line ends.
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    undo: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if rules.add_dummy_prefix:
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(undo)
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
            for piece in proto.pieces
            if piece.type in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer


def _merges(order: Mapping[AnyStr, float], ids: Mapping[AnyStr, int]) -> list[tuple[AnyStr, AnyStr]]:
    """Pairs of pieces that join to one of `order`, by its number there: the lowest first."""
    found = [
        (number, ids[piece[:cut]], ids[piece[cut:]], piece, cut)
        for piece, number in order.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    found.sort(key=lambda merge: merge[:3])
    return [(piece[:cut], piece[cut:]) for _, _, _, piece, cut in found]


def _byte_names() -> dict[int, str]:
    """The character by which byte-level tokenizers write each byte: itself if it can be seen, else one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + number) for number, byte in enumerate(others)}


def _ranks(path: Path) -> dict[bytes, int]:
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (OSError, ValueError, binascii.Error):
        raise BuildError(f"{path} is no list of byte pairs and their ranks") from None


def _is_ranks(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(1024).split()
    try:
        return len(first) == 2 and first[1].isdigit() and bool(base64.b64decode(first[0], validate=True))
    except binascii.Error:
        return False


def _add(tokenizer: Tokenizer, special: Mapping[str, int], path: Path) -> None:
    for token, number in sorted(special.items(), key=lambda item: item[1]):
        # Ids are given in order: a gap is filled with names that nobody writes.
        while tokenizer.token_to_id(token) is None and (size := tokenizer.get_vocab_size()) < number:
            tokenizer.add_special_tokens([AddedToken(f"<|unused_{size}|>", normalized=False, special=True)])
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        if tokenizer.token_to_id(token) != number:
            raise BuildError(f"{path}: {token} would have the id {tokenizer.token_to_id(token)}, not {number}")


def _compare(tokenizer: Tokenizer, original: Callable[[str], list[int]], path: Path) -> None:
    for text in SAMPLES:
        ids, expected = tokenizer.encode(text, add_special_tokens=False).ids, list(original(text))
        if ids != expected:
            raise BuildError(
                f"{path} cannot be converted to a tokenizer.json: {text!r} would be {ids} instead of {expected}"
            )


def _file(source: Path, name: str) -> Path:
    path = source / name
    if not path.is_file():
        raise BuildError(f"{source} has no {name}, which its tokenizer is made from")
    return path


def _tokenizer_config(source: Path) -> dict[str, Any]:
    """tokenizer_config.json without what names the code."""
    path = source / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    kept = {key: value for key, value in config.items() if key not in ("auto_map", "tokenizer_class", "tokenizer_type")}
    return {**kept, "tokenizer_class": "PreTrainedTokenizerFast"}


def _named_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of `added_tokens_decoder` by their ids."""
    listed = config.get("added_tokens_decoder") or {}
    return {str(token["content"]): int(number) for number, token in listed.items()}


def _chat_template(name: str) -> str:
    path = Path(__file__).with_name("chat_templates") / f"{name}.jinja"
    return path.read_text(encoding="utf-8").removesuffix("\n")
