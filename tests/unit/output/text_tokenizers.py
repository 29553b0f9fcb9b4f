"""Small tokenizers of every kind, trained on the spot."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 3.14, isn't it? do not",
    "人工智能正在改变世界，中文的每个字都由几个字节组成。你好，世界！",
    "Привет, мир! Füße, naïve café, ¿qué tal?  नमस्ते دنيا 안녕하세요 こんにちは",
    "👨‍👩‍👧‍👦 family 👍🏽 thumbs 🇨🇳 flag ❤️ heart 🤷🏼‍♀️ shrug",
    'def f(x):\n\treturn {"a": [1, 2, 3]}\n\n\n    # indented',
]
TEXTS = [*CORPUS, "", " ", "  two  spaces ", "nul\0inside\0", "\0", "\u200d\ufeff\ufffd", "a\r\n"]


@cache
def byte_level() -> Tokenizer:
    """Qwen's kind, with added tokens inside and outside the byte alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    added = ("<tool_call>", "two words 你", "café", "Ġĉ", "ä")
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer.add_special_tokens([AddedToken("ÿspecial", special=True), AddedToken("<特>")])
    return tokenizer


def _byte_fallback(decoder: decoders.Decoder) -> Tokenizer:
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=340, limit_alphabet=40, special_tokens=["<unk>", "<s>", "</s>"])
    trained.train_from_iterator([CORPUS[0].replace(" ", "▁")], trainer)
    ids = trained.get_vocab()
    vocabulary = sorted(ids, key=ids.__getitem__)
    pieces = [*vocabulary[:3], *byte_tokens, "<0x+F>", "▁▁", *vocabulary[3:]]
    pieces += [piece for piece in ("▁", "\ufffd") if piece not in pieces]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("▁<tool>", normalized=False)])
    return tokenizer


@cache
def llama2() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _byte_fallback(decoders.Sequence(steps))


@cache
def double_strip() -> Tokenizer:
    space = decoders.Metaspace(prepend_scheme="never")
    steps = [space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    return _byte_fallback(decoders.Sequence(steps))


@cache
def gemma() -> Tokenizer:
    return _byte_fallback(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))


@cache
def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["▁<extra>▁"])
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=260, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def suffix_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def ctc() -> Tokenizer:
    pieces = ["<pad>", "|", *"abcdefgh'.,"]
    tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="|"))
    tokenizer.decoder = decoders.CTC()
    return tokenizer


@cache
def no_decoder() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2}, unk_token="a"))
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer
