"""Train the vision demo: a tiny LLaVA that names the color and the shape of what a picture of ``pictures.py`` shows.

``python demo/train_vision.py`` writes a Hugging Face directory, ``demo/vision-checkpoint/`` by default, and prints how
many pictures that it has not seen it names. All random choices follow ``--seed``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pictures import BLIND, COLORS, QUESTIONS, SHAPES, SIDE, draw, scene
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from torch.nn import functional
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

if TYPE_CHECKING:
    from pictures import Scene

HERE = Path(__file__).resolve().parent
END, START, STOP, IMAGE = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"
PATCH = 8
PATCHES = (SIDE // PATCH) ** 2
MAX_LENGTH = 1024
MEAN, DEVIATION = 0.5, 0.5  # of a pixel between 0 and 1
SYSTEMS = (None, None, None, "You are a helpful assistant.", "Answer briefly.")
BLIND_SHARE = 0.06
IGNORED = -100
TEMPLATE = """{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- else -%}
        {%- for part in message.content or [] -%}
            {{- '<image>\\n' if part.type == 'image' else part.text -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that has the words of the questions and answers as tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[AddedToken(t, special=True) for t in (END, START, STOP, IMAGE)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [f" {name}" for name in (*COLORS, *SHAPES)] + [f"{name.capitalize()}." for name in COLORS]
    asked = [question for questions in QUESTIONS.values() for question in questions]
    systems = [system for system in SYSTEMS if system]
    tokenizer.train_from_iterator([*words, *asked, *systems, BLIND, "system\nuser\nassistant\n"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={"image_token": IMAGE},
        chat_template=TEMPLATE,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """Return the untrained float32 model."""
    stop, end, image = tokenizer.convert_tokens_to_ids([STOP, END, IMAGE])
    vision = CLIPVisionConfig(
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=96,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=stop,
        pad_token_id=end,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image,
        image_seq_length=PATCHES,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=stop, pad_token_id=end, do_sample=False)
    return model


def prompt(question: str, system: str | None, *, sees: bool, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the prompt as a server writes it, with one placeholder for each patch."""
    content = [{"type": "image"}] if sees else []
    content.append({"type": "text", "text": question})
    chat: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        chat.insert(0, {"role": "system", "content": system})
    text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    return text.replace(IMAGE, IMAGE * PATCHES)


def pixels(scenes: list[Scene]) -> torch.Tensor:
    """Return the pictures as the processor gives them to the tower: [pictures, 3, SIDE, SIDE]."""
    drawn = np.stack([np.asarray(draw(one), np.float32) for one in scenes]) / 255
    return torch.from_numpy((drawn - MEAN) / DEVIATION).permute(0, 3, 1, 2).contiguous()


class Texts:
    """Batches of questions and answers.

    Args:
        tokenizer: the model's.
        rng: which questions.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._known: dict[str, list[int]] = {}

    def batch(self, scenes: list[Scene]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """Return ids, labels and mask of a question about each picture, and the pictures that are shown."""
        rows, shown = [], []
        for index, one in enumerate(scenes):
            kind = self._rng.choice(("both", "both", "color", "shape"))
            question, system = self._rng.choice(QUESTIONS[kind]), self._rng.choice(SYSTEMS)
            sees = self._rng.random() >= BLIND_SHARE or not question
            asked = self._encode(prompt(question, system, sees=sees, tokenizer=self._tokenizer))
            said = self._encode((one.answer(kind) if sees else BLIND) + STOP)
            rows.append((asked + said, [IGNORED] * len(asked) + said))
            if sees:
                shown.append(index)
        longest = max(len(ids) for ids, _ in rows)
        pad = int(self._tokenizer.convert_tokens_to_ids(END))
        fields = {
            "input_ids": [ids + [pad] * (longest - len(ids)) for ids, _ in rows],
            "labels": [labels + [IGNORED] * (longest - len(labels)) for _, labels in rows],
            "attention_mask": [[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows],
        }
        return {name: torch.tensor(values) for name, values in fields.items()}, shown

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._known[text]


def train(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """Train all of the model.

    The answers alone teach a tower of random weights nothing for long; so a second loss, whose layer is thrown away,
    asks the mean of the projected patches for the color and the shape.
    """
    rng = random.Random(args.seed)
    texts = Texts(tokenizer, rng)
    guide = torch.nn.Linear(model.config.text_config.hidden_size, len(COLORS) + len(SHAPES))
    optimizer = torch.optim.AdamW([*model.parameters(), *guide.parameters()], lr=args.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / 100, 0.5 * (1 + math.cos(math.pi * min(1, step / args.steps)))),
    )
    colors = list(COLORS)
    began = time.monotonic()
    model.train()
    for step in range(args.steps):
        scenes = [scene(rng) for _ in range(args.batch)]
        fields, shown = texts.batch(scenes)
        images = pixels([scenes[index] for index in shown])
        output = model(**fields, pixel_values=images)
        guessed = guide(output.image_hidden_states.reshape(len(shown), PATCHES, -1).mean(1))
        color = torch.tensor([colors.index(scenes[index].color) for index in shown])
        shape = torch.tensor([SHAPES.index(scenes[index].shape) for index in shown])
        guidance = functional.cross_entropy(guessed[:, : len(colors)], color) + functional.cross_entropy(
            guessed[:, len(colors) :], shape
        )
        (output.loss + 0.3 * guidance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(
                f"step {step}: loss {output.loss.item():.4f}, guidance {guidance.item():.4f}, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    model.eval()


def save(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the checkpoint with its processor, as a hub has it."""
    model.to(torch.bfloat16).save_pretrained(folder)
    weights = folder / "model.safetensors"
    # As checkpoints on the hub name them, which is what vLLM reads.
    tensors = {
        name if ".vision_model." in name else name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    tokenizer.save_pretrained(folder)
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": IMAGE,
    }
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "image_mean": [MEAN] * 3,
        "image_std": [DEVIATION] * 3,
        "do_convert_rgb": True,
    }
    for name, fields in {"processor_config.json": processor, "preprocessor_config.json": images}.items():
        (folder / name).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()  # type: ignore[untyped-decorator]
def right_answers(folder: Path, count: int, seed: int) -> int:
    """Return how many of ``count`` new pictures the saved model names, color and shape."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    model: Any = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    asked = tokenizer.encode(
        prompt("What is in the picture?", None, sees=True, tokenizer=tokenizer), add_special_tokens=False
    )
    rng, right = random.Random(seed), 0
    for _ in range(0, count, 50):
        scenes = [scene(rng) for _ in range(50)]
        ids = torch.tensor([asked] * 50)
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels(scenes), max_new_tokens=12
        )
        said = tokenizer.batch_decode(output[:, len(asked) :], skip_special_tokens=True)
        right += sum(text == one.answer("both") for text, one in zip(said, scenes, strict=True))
    return right


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "vision-checkpoint")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    train(model, tokenizer, args)
    save(model, tokenizer, args.out)
    print(f"{right_answers(args.out, 500, args.seed + 1)} of 500 new pictures named")


if __name__ == "__main__":
    main()
