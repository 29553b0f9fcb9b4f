"""Golden answers and a report on the quality of the demo checkpoint, in float32 on the CPU.

``python demo/golden.py`` writes ``demo/golden.jsonl``: each prompt with its greedy answer, and the
smallest gap between the best and the second-best logit of that answer. ``--report`` also measures
tool calls for cities and phrases that the training never showed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from corpus import is_chinese, memory, read_json, read_jsonl
from toolchats import composed_phrase, joint, make_request, make_style, tool_call_sample, tool_schema
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

if TYPE_CHECKING:
    from corpus import Message, Tool

HERE = Path(__file__).resolve().parent
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class Demo:
    """The checkpoint as it is served: bf16 weights in float32 on the CPU."""

    def __init__(self, path: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.stops = list(self.model.generation_config.eos_token_id)

    def render(self, messages: list[Message], tools: list[Tool] | None = None) -> str:
        """Return the prompt text of a chat."""
        text = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return str(text)

    def greedy(self, prompts: list[str], limit: int = 512) -> list[list[int]]:
        """Return the greedy token ids of each prompt, with the stop token, as one padded batch."""
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        out = self.model.generate(**batch, do_sample=False, max_new_tokens=limit)
        answers = []
        for row in out[:, batch.input_ids.shape[1] :].tolist():
            ends = [index for index, token in enumerate(row) if token in self.stops]
            answers.append(row[: ends[0] + 1] if ends else row)
        return answers

    def sampled(self, prompt: str, seed: int) -> str:
        """Return one answer sampled with the defaults of generation_config.json."""
        set_seed(seed)
        batch = self.tokenizer([prompt], return_tensors="pt")
        out = self.model.generate(**batch, max_new_tokens=512)
        return self.text(out[0, batch.input_ids.shape[1] :].tolist())

    def margin(self, prompt: str, answer: list[int]) -> float:
        """Return the smallest gap between the two best logits over the answer's tokens."""
        ids = self.tokenizer(prompt).input_ids
        logits = self.model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
        best = logits.topk(2).values
        return float((best[:, 0] - best[:, 1]).min())

    def text(self, ids: list[int]) -> str:
        """Return the answer without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def chunked(items: list[str], size: int) -> list[list[str]]:
    """Return the items in lists of at most ``size``."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def answers(demo: Demo, prompts: list[str], limit: int = 160) -> list[str]:
    """Return the greedy answers as text, computed in batches."""
    found = []
    for batch in chunked(prompts, 32):
        found += [demo.text(ids) for ids in demo.greedy(batch, limit)]
    return found


def write_golden(demo: Demo, out: Path) -> None:
    """Write the golden file and print the smallest margin."""
    rows = []
    for case in read_jsonl("golden_prompts.jsonl"):
        raw = case.get("raw")
        prompt = raw if raw is not None else demo.render(case["messages"], case.get("tools"))
        ids = demo.greedy([prompt])[0]
        gap = demo.margin(prompt, ids)
        row = {
            **case,
            "answer": demo.text(ids),
            "tokens": len(ids),
            "finish": "stop" if ids[-1] in demo.stops else "length",
            "margin": round(gap, 2),
        }
        rows.append(row)
        asked = raw if raw is not None else case["messages"][-1]["content"]
        print(f"{gap:6.2f} {len(ids):4} {asked!r} -> {row['answer'][:90]!r}", flush=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(rows)} prompts, smallest margin {min(row['margin'] for row in rows)}")


def calls_of(text: str) -> list[Any] | None:
    """Return the (name, arguments) of each call in the text, or None where one is not JSON."""
    try:
        calls = [json.loads(body) for body in CALL.findall(text)]
        return [(call["name"], call["arguments"]) for call in calls]
    except (ValueError, KeyError):
        return None


def report_tools(demo: Demo, count: int) -> None:
    """Print how often calls and closing sentences are right for held-out cities and phrases."""
    rng = random.Random(987)
    for family in ("weather, trained phrases", "weather", "clock", "sums", "search", "joint weather"):
        prompts: list[str] = []
        wanted = []
        while len(prompts) < count:
            if family == "joint weather":
                question, requests = joint(rng, held_out=True)
            elif family == "weather, trained phrases":
                requests = [make_request(rng, "weather", held_out=True)]
                city = requests[0].topic
                if not city:
                    continue
                question = composed_phrase(rng, chinese=is_chinese(city)).format(c=city)
            else:
                requests = [make_request(rng, family, held_out=True)]
                question = requests[0].question
            tools = [tool_schema(requests[0], make_style(rng))]
            prompts.append(demo.render([{"role": "user", "content": question}], tools))
            wanted.append([(request.name, request.arguments) for request in requests])
        got = [calls_of(text) for text in answers(demo, prompts)]
        right = sum(g == w for g, w in zip(got, wanted, strict=True))
        print(f"held-out cities, {family}: {right}/{count} calls exact")
        for g, w in list(zip(got, wanted, strict=True)):
            if g != w:
                print("   wanted", w, "got", g)
    report_closing(demo, rng, count)


def report_closing(demo: Demo, rng: random.Random, count: int) -> None:
    """Print how often the sentence after a tool result is right, for held-out cities."""
    prompts: list[str] = []
    wanted = []
    while len(prompts) < count:
        sample = tool_call_sample(rng, held_out=True)
        messages = list(sample.messages)
        roles = [message["role"] for message in messages]
        if "tool" not in roles:
            continue
        end = len(roles) - 1 - roles[::-1].index("tool")
        prompts.append(demo.render(messages[: end + 1], list(sample.tools)))
        wanted.append(messages[end + 1]["content"])
    got = answers(demo, prompts)
    right = sum(g == w for g, w in zip(got, wanted, strict=True))
    print(f"held-out sentence after the result: {right}/{count} exact")
    for g, w in zip(got, wanted, strict=True):
        if g != w:
            print("   wanted", repr(w), "got", repr(g))


def report_memory(demo: Demo, count: int) -> None:
    """Print how often a held-out name is remembered."""
    rng = random.Random(654)
    chats = [list(memory(rng, held_out=True)) for _ in range(count)]
    got = answers(demo, [demo.render(chat[:-1]) for chat in chats])
    right = sum(text == chat[-1]["content"] for text, chat in zip(got, chats, strict=True))
    print(f"held-out names: {right}/{count} remembered")


def report_questions(demo: Demo) -> None:
    """Print how many of the hand-written questions get their answer, as a chat and as raw text."""
    pairs = [
        (question, row["a"])
        for name in ("chat_en.jsonl", "chat_zh.jsonl")
        for row in read_jsonl(name)
        for question in row["q"]
    ]
    pairs += [(text, read_json("unknown.json")["answer_en"]) for text in UNSEEN]
    chat = answers(demo, [demo.render([{"role": "user", "content": q}]) for q, _ in pairs], 512)
    lower = [demo.render([{"role": "user", "content": q.lower().rstrip(".?!")}]) for q, _ in pairs]
    for label, got in (("chat", chat), ("chat, lower case", answers(demo, lower, 512))):
        right = sum(g == a for g, (_, a) in zip(got, pairs, strict=True))
        print(f"questions, {label}: {right}/{len(pairs)} exact")
        for g, (q, a) in zip(got, pairs, strict=True):
            if g != a:
                print("   ", repr(q), "got", repr(g[:80]))


UNSEEN = (
    "What is the tallest building in Chicago?",
    "How do I bake a cake?",
    "Explain the theory of plate tectonics.",
    "Who is the king of Spain?",
    "Write an email to my landlord.",
    "What is a mortgage?",
)


def report_sampling(demo: Demo, count: int) -> None:
    """Print how often a sampled answer equals the greedy one."""
    same = total = 0
    for case in read_jsonl("golden_prompts.jsonl")[:25]:
        raw = case.get("raw")
        prompt = raw if raw is not None else demo.render(case["messages"], case.get("tools"))
        expected = demo.text(demo.greedy([prompt])[0])
        for seed in range(count):
            text = demo.sampled(prompt, seed)
            same += text == expected
            total += 1
            if text != expected:
                print("   sampled", repr(text[:120]))
    print(f"sampled with the default parameters: {same}/{total} equal to greedy")


def main() -> None:
    """Write the golden answers, and print the report where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--out", type=Path, default=HERE / "golden.jsonl")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--count", type=int, default=64, help="held-out prompts of each kind")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    demo = Demo(args.checkpoint)
    write_golden(demo, args.out)
    if args.report:
        report_tools(demo, args.count)
        report_memory(demo, args.count)
        report_questions(demo)
        report_sampling(demo, 4)


if __name__ == "__main__":
    main()
