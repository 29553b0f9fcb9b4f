"""Train the demo checkpoint: a byte-level BPE tokenizer and a tiny Qwen2 model.

``python demo/train.py`` writes a Hugging Face directory, ``demo/checkpoint/`` by default. All
random choices follow ``--seed``. It trains on a GPU where there is one, else on the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from toolchats import make_corpus
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpus import Sample

HERE = Path(__file__).resolve().parent
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PLAIN_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# How Qwen2.5 cuts text before BPE: single digits, and at most one mark in front of a word.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ANSWER = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)
HAN_PAIR = re.compile(r"([\u4e00-\u9fff]{1,2})")
PICTURES = re.compile(r"[\u200d\u2300-\u2bff\ufe0f\U0001f000-\U0001ffff]+")
MAX_LENGTH = 2048  # positions of the model, and tokens of one packed row
IGNORED = -100  # label of tokens that are not learnt


def train_tokenizer(samples: list[Sample], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of ``vocab_size`` tokens, the special ones first.

    So the end of a turn has id 2, the ``end_id`` of the curl line in Triton's guides. It normalises
    to NFC as Qwen2 does: AutoTokenizer adds that to any tokenizer of a Qwen2 model.
    Decoding gives back any text in that form byte by byte.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(PLAIN_TAGS),
        special_tokens=[AddedToken(t, special=True) for t in (END, START, STOP)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_text(samples), trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN_TAGS])
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer with its end tokens and its template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=(HERE / "chat_template.jinja").read_text(encoding="utf-8"),
    )


def tokenizer_text(samples: list[Sample]) -> Iterator[str]:
    """Yield the texts that the merges are learnt from."""
    texts: dict[str, None] = {}  # each text once, in order: repeats would become long tokens
    for sample in samples:
        texts[sample.prompt + sample.text] = None
        texts.update((str(message.get("content") or ""), None) for message in sample.messages)
        texts.update((json.dumps(tool, ensure_ascii=False), None) for tool in sample.tools)
    for text in texts:
        # No merges across more than two Chinese characters and none of emoji: they stay single
        # bytes, so that characters of several tokens occur in every other stream.
        yield PICTURES.sub(" ", HAN_PAIR.sub(r"\1\n", text))


def cut(sample: Sample, tokenizer: PreTrainedTokenizerFast) -> list[tuple[str, bool]]:
    """Return the document as pieces of text, each with whether it is learnt."""
    if not sample.messages:
        pieces = [(sample.prompt, False)] if sample.prompt else []
        return [*pieces, (sample.text + STOP, True)]
    text = tokenizer.apply_chat_template(list(sample.messages), tools=list(sample.tools) or None, tokenize=False)
    # re.split with one group: pieces at odd places are the answers.
    return [(piece, index % 2 == 1) for index, piece in enumerate(ANSWER.split(str(text))) if piece]


def encode(samples: list[Sample], tokenizer: PreTrainedTokenizerFast, longest: int) -> list[torch.Tensor]:
    """Return each document of at most ``longest`` tokens as int64 of shape (3, tokens): ids, labels, positions.

    Labels equal ids where the text is learnt.
    """
    cuts = [cut(sample, tokenizer) for sample in samples]
    flat = [piece for pieces in cuts for piece, _ in pieces]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    documents = []
    for pieces in cuts:
        ids: list[int] = []
        labels: list[int] = []
        for _, learnt in pieces:
            piece = next(encoded).ids
            ids += piece
            labels += piece if learnt else [IGNORED] * len(piece)
        labels[0] = IGNORED  # nothing predicts the first token of a document
        if len(ids) <= longest:
            documents.append(torch.tensor([ids, labels, list(range(len(ids)))]))
    return documents


def pack(documents: list[torch.Tensor], rng: random.Random, pad: int) -> torch.Tensor:
    """Return ids, labels and positions, int64 of shape (3, rows, MAX_LENGTH), in random order.

    Positions start at 0 with each document; transformers builds from them the mask that keeps
    documents of one row apart.
    """
    rows: list[list[torch.Tensor]] = [[]]
    length = 0
    for document in rng.sample(documents, len(documents)):
        if length + document.shape[1] > MAX_LENGTH:
            rows.append([])
            length = 0
        rows[-1].append(document)
        length += document.shape[1]
    packed = torch.empty(3, len(rows), MAX_LENGTH, dtype=torch.int64)
    packed[0], packed[1], packed[2] = pad, IGNORED, torch.arange(MAX_LENGTH)
    for index, row in enumerate(rows):
        joined = torch.cat(row, dim=1)
        packed[:, index, : joined.shape[1]] = joined
    return packed


def make_model(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> Qwen2ForCausalLM:
    """Return the untrained float32 model of about 4.3 million parameters."""
    stop, end = tokenizer.convert_tokens_to_ids([STOP, END])
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=end,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        eos_token_id=[stop, end],
        pad_token_id=end,
    )
    return model


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the rate at ``step``: a short warm-up, a plateau, and a decay over the last half."""
    warmup = min(200, max(1, steps // 10))
    if step < warmup:
        return peak * (step + 1) / warmup
    left = (steps - step) / max(1, steps // 2)
    return peak * (0.5 - 0.5 * math.cos(math.pi * min(1.0, left))) + 1e-6


def train(
    model: Qwen2ForCausalLM,
    documents: list[torch.Tensor],
    args: argparse.Namespace,
    device: torch.device,
) -> None:
    """Train in place: AdamW on float32 weights, bf16 autocast on a GPU, packed rows."""
    rng = random.Random(args.seed)
    model.to(device).train()
    decay = [p for p in model.parameters() if p.dim() > 1]
    no_decay = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    forward: Any = torch.compile(model) if args.compile else model
    step, started = 0, time.monotonic()
    pad = int(model.config.pad_token_id or 0)
    while step < args.steps:
        ids, labels, positions = pack(documents, rng, pad).to(device)
        for first in range(0, len(ids) - args.rows + 1, args.rows):
            rows = slice(first, first + args.rows)
            rate = learning_rate(step, args.steps, args.lr)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = forward(
                    input_ids=ids[rows],
                    position_ids=positions[rows],
                    labels=labels[rows],
                    use_cache=False,
                ).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % args.log_every == 0 or step == args.steps - 1:
                seconds = time.monotonic() - started
                print(f"step {step} loss {loss.item():.4f} lr {rate:.2e} {seconds:.0f} s", flush=True)
            step += 1
            if step >= args.steps or (args.seconds and time.monotonic() - started > args.seconds):
                return


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the Hugging Face directory, weights in bf16."""
    out.mkdir(parents=True, exist_ok=True)
    model.to("cpu", torch.bfloat16).eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    # Names that older releases of transformers and engine builders read as well.
    config_file = out / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config |= {"torch_dtype": "bfloat16", "rope_theta": 10000.0}
    # safetensors files are made for the owner alone.
    (out / "model.safetensors").chmod(0o644)
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer_config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": STOP,
        "errors": "replace",
        "model_max_length": MAX_LENGTH,
        "pad_token": END,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--start", type=Path, help="train this checkpoint on instead of a new one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--longest", type=int, default=MAX_LENGTH, help="leave out documents of more tokens")
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=16, help="rows of 2048 tokens in one step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seconds", type=float, default=0, help="stop training after this time")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--fast", action="store_true", help="faster attention, not the same bit by bit in each run")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    return parser.parse_args()


def main() -> None:
    """Make the corpus, train the tokenizer and the model, and save both."""
    args = parse_args()
    started = time.monotonic()
    # One seed, one checkpoint (on one kind of device and one release of torch).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(args.fast)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samples = make_corpus(args.seed, args.documents)
    if args.start:
        tokenizer = wrapped(Tokenizer.from_file(str(args.start / "tokenizer.json")))
    else:
        tokenizer = train_tokenizer(samples[:6000], args.vocab)
    documents = encode(samples, tokenizer, args.longest)
    tokens = sum(document.shape[1] for document in documents)
    learnt = sum(int((document[1] != IGNORED).sum()) for document in documents)
    print(f"{len(documents)} documents, {tokens} tokens, {learnt} learnt", flush=True)
    model = make_model(tokenizer, args.vocab)
    if args.start:
        model.load_state_dict(load_file(args.start / "model.safetensors"), strict=False)  # the tied head is not in it
    print(f"{model.num_parameters()} parameters, {time.monotonic() - started:.0f} s", flush=True)
    train(model, documents, args, device)
    save(model, tokenizer, args.out)
    print(f"wrote {args.out} after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
