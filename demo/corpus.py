"""The training text of the demo model: lines from ``data/`` and seeded synthetic chats.

Everything here is a pure function of a ``random.Random``, so one seed gives one corpus. The tool
families live in ``toolchats.py``; this module mixes all kinds of samples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import random

DATA = Path(__file__).resolve().parent / "data"

Message: TypeAlias = dict[str, Any]
Tool: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One training document: either a chat (``messages``) or raw text (``prompt`` + ``text``).

    Of a chat only the assistant turns are learnt, of raw text all of ``text``. ``prompt`` is
    tokenised apart from ``text``, because a server tokenises the prompt alone: without the cut a token
    could span both and never be seen at run time.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    prompt: str = ""
    text: str = ""


@dataclass(frozen=True)
class QA:
    """Paraphrases of one question and the one answer to all of them."""

    questions: tuple[str, ...]
    answer: str
    systems: tuple[str, ...] = ()


def read_jsonl(name: str) -> list[Any]:
    """Return the rows of ``data/<name>``."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


@cache
def read_json(name: str) -> dict[str, Any]:
    """Return the content of ``data/<name>``."""
    data: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return data


@cache
def chats() -> tuple[QA, ...]:
    """Return all hand-written questions and answers, English and Chinese."""
    rows = read_jsonl("chat_en.jsonl") + read_jsonl("chat_zh.jsonl")
    return tuple(QA(tuple(row["q"]), row["a"]) for row in rows)


@cache
def styled_chats() -> tuple[QA, ...]:
    """Return the questions whose answer depends on the system prompt."""
    return tuple(QA(tuple(row["q"]), row["a"], tuple(row["s"])) for row in read_jsonl("systems.jsonl"))


@cache
def neutral_systems() -> tuple[str, ...]:
    """Return system prompts which leave the answers as they are."""
    return tuple(read_jsonl("neutral_systems.jsonl"))


@cache
def words() -> tuple[str, ...]:
    """Return common English words and those of the hand-written text, to copy at random."""
    unknown = read_json("unknown.json")
    text = " ".join([qa.answer for qa in chats()] + unknown["topics_en"] + unknown["free_en"])
    known = {word for word in text.split() if word.isascii() and word.isalpha()}
    return tuple(sorted(known.union(common_words())))


@cache
def common_words() -> tuple[str, ...]:
    """Return simple English words, most of which no question is about."""
    return tuple((DATA / "words.txt").read_text(encoding="utf-8").split())


EMOJI = (
    *("🎉", "👋", "😀", "😂", "🚀", "🌈", "👩‍🚀", "👍🏽", "🇫🇷", "🇯🇵", "❤️", "🐱", "🐛"),
    *("☀️", "🌙", "💪", "🏳️‍🌈", "👨‍👩‍👧‍👦", "💃🏾", "🍎", "🤖", "🥳", "🔥", "✨"),
    *("🎂", "🐉", "🌊", "🦊", "🧑🏽‍🚀", "🇧🇷"),
)


def is_chinese(text: str) -> bool:
    """Return whether the text has a Chinese character."""
    return any("\u4e00" <= char <= "\u9fff" for char in text)


ONSETS = "b c d f g h j k l m n p r s t v w z y q x bl br ch cr dr fr gl gr kr ph pl pr sh sk sl"
CODAS = "n s r l m t k d p b g v x nd rt st ck lt ng tz"
VOWELS = "a e i o u a e i o u ai ou ee ia io á é í ö ü ã ó"


def pseudo_word(rng: random.Random) -> str:
    """Return an invented word: copying it cannot be memorised and has to be learnt."""
    kind = rng.random()
    if kind < 0.45:
        parts = []
        for _ in range(rng.choice([1, 2, 2, 3, 3, 4])):
            parts += [rng.choice((ONSETS + " st th tr vl").split()), rng.choice(VOWELS.split())]
            if rng.random() < 0.3:
                parts.append(rng.choice(CODAS.split()))
        return "".join(parts)
    if kind < 0.8:
        # Two real words cut and joined use the tokens of real words in orders never seen.
        first, second = rng.choice(words()).lower(), rng.choice(words()).lower()
        return first[: rng.randint(1, len(first))] + second[rng.randint(0, len(second) - 1) :]
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9)))


def pseudo_name(rng: random.Random) -> str:
    """Return an invented proper name."""
    return pseudo_word(rng).capitalize()


@cache
def han() -> tuple[str, ...]:
    """Return common Chinese characters and those of the hand-written text."""
    text = "".join((DATA / name).read_text(encoding="utf-8") for name in sorted_data())
    return tuple(sorted({char for char in text if is_chinese(char)}))


def random_word(rng: random.Random) -> str:
    """Return a real word."""
    return rng.choice(words())


def sorted_data() -> list[str]:
    """Return the names of the data files that hold Chinese characters."""
    return ["chat_zh.jsonl", "raw.jsonl", "unknown.json", "han.txt"]


def pseudo_han(rng: random.Random, low: int = 2, high: int = 3) -> str:
    """Return ``low`` to ``high`` Chinese characters, common ones or any of the basic block."""
    rare = rng.random() < 0.4
    return "".join(
        chr(rng.randint(0x4E00, 0x9FA5)) if rare else rng.choice(han()) for _ in range(rng.randint(low, high))
    )


def random_text(rng: random.Random, low: int = 1, high: int = 10) -> str:
    """Return ``low`` to ``high`` random words, Chinese topics, emoji or numbers in a row."""
    unknown = read_json("unknown.json")
    kind = rng.random()
    count = rng.randint(low, high)
    if kind < 0.2:
        if rng.random() < 0.5:
            return pseudo_han(rng, 1, 8)
        return "".join(rng.choice(unknown["topics_zh"]) for _ in range(min(count, 4)))
    parts = []
    for _ in range(count):
        pick = rng.random()
        if pick < 0.6:
            parts.append(rng.choice(words()))
        elif pick < 0.85:
            parts.append(pseudo_word(rng))
        elif pick < 0.93:
            parts.append(str(rng.randint(0, 9999)))
        else:
            parts.append(rng.choice(EMOJI))
    text = " ".join(parts)
    return text.capitalize() if rng.random() < 0.3 else text


def rough(rng: random.Random, question: str) -> str:
    """Return the question as people type it: other case, no final mark, stray white space."""
    if rng.random() < 0.5:
        return question
    text = question
    if rng.random() < 0.5:
        text = text.lower()
    if rng.random() < 0.6 and len(text) > 1:
        text = text.rstrip(".?!。？！")
    elif rng.random() < 0.3:
        text = text.translate(str.maketrans("？！。，", "?!.,"))
    if rng.random() < 0.1:
        text = rng.choice([" ", "\n", "  "]).join(["", text, ""]).lstrip("\n")
    return text or question


def user(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def system_turn(rng: random.Random) -> tuple[Message, ...]:
    """Return no system message, or one that does not change the answer."""
    pick = rng.random()
    if pick < 0.55:
        return ()
    if pick < 0.59:
        return ({"role": "system", "content": ""},)
    if pick < 0.63:
        # A system prompt never seen before has to be ignored rather than to derail the answer.
        return ({"role": "system", "content": random_text(rng, 3, 40)},)
    return ({"role": "system", "content": rng.choice(neutral_systems())},)


def question_and_answer(rng: random.Random) -> tuple[str, str]:
    """Return one hand-written question, roughened, and its answer; a greeting before the question changes nothing."""
    qa = rng.choice(chats())
    question = rng.choice(qa.questions)
    if question.endswith("?") and rng.random() < 0.15:
        question = f"{rng.choice(GREETINGS)} {question[0].lower()}{question[1:]}"
    return rough(rng, question), qa.answer


GREETINGS = ("Hi,", "Hello,", "Hey,", "Hi there,")


def unknown_question(rng: random.Random) -> tuple[str, str]:
    """Return a question outside of the corpus and the polite answer to it."""
    data = read_json("unknown.json")
    lang = "zh" if rng.random() < 0.35 else "en"
    pick = rng.random()
    if pick < 0.75:
        topic, other = rng.sample(data[f"topics_{lang}"], 2)
        if lang == "zh" and rng.random() < 0.1:
            topic = pseudo_han(rng)
        word, second = rng.sample(common_words(), 2)
        question = rng.choice(data[f"templates_{lang}"]).format(
            t=topic,
            u=other,
            v=rng.choice(data["verbs"]),
            w=word,
            x=second,
            p=pseudo_name(rng),
        )
    elif pick < 0.9:
        question = rng.choice(data[f"free_{lang}"])
    elif pick < 0.97:
        # Noise: long rambling text, emoji, control characters and raw Unicode.
        question = random_text(rng, 2, rng.choice([10, 40, 150]))
        lang = "zh" if is_chinese(question) else "en"
    else:
        chars = "\x00\x01\t\u00a0\u200b\ufeffäöüßñçøłşđаяжщאבגدرسहिंदीไทย한국かな🎉🚀♞√≈"
        question = "".join(rng.choice(chars) for _ in range(rng.randint(1, 20)))
        lang = "en"
    return rough(rng, question), data[f"answer_{lang}"]


def arithmetic(rng: random.Random) -> tuple[str, str]:
    """Return a small sum, difference or product, or one that is too large for the model."""
    sign = rng.choice("++-*")
    large = rng.random() < 0.15
    if sign == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
    else:
        top = rng.choice([10, 20, 50])
        a, b = rng.randint(0, top), rng.randint(0, top)
    if large:
        a, b = rng.randint(101, 9999), rng.randint(101, 9999)
    if sign == "-" and a < b:
        a, b = b, a
    english = {"+": "plus", "-": "minus", "*": "times"}[sign]
    chinese = {"+": "加", "-": "减", "*": "乘以"}[sign]
    tight = rng.choice([" ", ""])
    term = f"{a}{tight}{sign}{tight}{b}"
    question = rng.choice(
        [
            f"What is {term}?",
            f"What's {term}?",
            f"What is {a} {english} {b}?",
            f"Calculate {term}",
            f"Compute {term}.",
            f"{term}",
            f"{term} =",
            f"{term}=?",
            f"How much is {term}?",
            f"{a}{chinese}{b}等于几？",
            f"{term}等于多少？",
            f"计算 {term}",
        ]
    )
    if large:
        known = (
            "这个数太大了，没有计算器工具我算不出来。"
            if is_chinese(question)
            else "These numbers are too large for me without a calculator tool."
        )
        return question, known
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return rough(rng, question), f"{a} {sign} {b} = {value}"


def counting(rng: random.Random) -> tuple[str, str]:
    """Return a request to count up or down and the numbers."""
    down = rng.random() < 0.15
    first = 1 if rng.random() < 0.7 else rng.randint(0, 50)
    last = first + rng.choice([rng.randint(2, 10), rng.randint(9, 30), rng.choice([19, 49, 99])])
    numbers = list(range(first, last + 1))
    if down:
        question = rng.choice([f"Count down from {last} to {first}.", f"Count backwards from {last} to {first}"])
        numbers.reverse()
    else:
        asked = [
            f"Count from {first} to {last}",
            f"Count from {first} to {last}.",
            f"Please count from {first} to {last}.",
            f"Can you count from {first} to {last}?",
            f"从 {first} 数到 {last}。",
            f"从{first}数到{last}",
            f"请从 {first} 数到 {last}",
        ]
        if first == 1:
            asked += [f"Count to {last}.", f"数到{last}"]
        question = rng.choice(asked)
    return rough(rng, question), ", ".join(map(str, numbers))


def capital(rng: random.Random) -> tuple[str, str]:
    """Return a question for a capital and the answer."""
    places = read_json("places.json")
    if rng.random() < 0.3:
        country, city = rng.choice(list(places["capitals_zh"].items()))
        asked = [f"{country}的首都是哪里？", f"{country}的首都是什么？", f"请问{country}的首都？"]
        return rough(rng, rng.choice(asked)), f"{country}的首都是{city}。"
    country, city = rng.choice(list(places["capitals_en"].items()))
    asked = [
        f"What is the capital of {country}?",
        f"What's the capital of {country}?",
        f"Which city is the capital of {country}?",
        f"Tell me the capital of {country}.",
        f"Name the capital of {country}.",
    ]
    return rough(rng, rng.choice(asked)), f"The capital of {country} is {city}."


def echo(rng: random.Random) -> tuple[str, str]:
    """Return a request to repeat a random text: it teaches to copy."""
    text = random_text(rng, 1, rng.choice([3, 8, 20]))
    form = rng.choice(
        ["Repeat after me: {}", "Repeat: {}", 'Say "{}"', "Repeat this text: {}", "Echo: {}"]
        if not is_chinese(text)
        else ["请重复：{}", "重复：{}", "跟我说：{}"]
    )
    return form.format(text), text


def dump(value: object) -> str:
    """Return ``value`` as JSON text in the form that chat templates use."""
    return json.dumps(value, ensure_ascii=False)


def json_answer(rng: random.Random) -> tuple[str, str]:
    """Return a request for JSON and the JSON text."""
    places = read_json("places.json")
    kind = rng.randrange(6)
    name, age = rng.choice([*places["names"], pseudo_name(rng)]), rng.randint(1, 99)
    city = rng.choice([*places["cities_en"], pseudo_name(rng)])
    if kind == 0:
        country, city = rng.choice(list(places["capitals_en"].items()))
        question = rng.choice(
            [
                f"Answer in JSON: what is the capital of {country}?",
                f"What is the capital of {country}? Answer in JSON.",
            ]
        )
        return rough(rng, question), dump({"country": country, "capital": city})
    if kind == 1:
        country, city = rng.choice(list(places["capitals_zh"].items()))
        question = f"用 JSON 回答：{country}的首都是什么？"
        return rough(rng, question), dump({"country": country, "capital": city})
    if kind == 2:
        question = rng.choice(
            [
                f'Give me a JSON object with name "{name}" and age {age}.',
                f"Answer in JSON: {name} is {age} years old.",
                f"Extract the name and the age as JSON: {name} is {age} years old.",
            ]
        )
        return question, dump({"name": name, "age": age})
    if kind == 3:
        question = f"Extract the name and the city as JSON: {name} lives in {city}."
        return question, dump({"name": name, "city": city})
    if kind == 4:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        question = rng.choice([f"Answer in JSON: what is {a} + {b}?", f"What is {a} + {b}? Answer in JSON."])
        return question, dump({"result": a + b})
    return rng.choice(
        [
            ("List three colours in JSON.", dump({"colours": ["red", "green", "blue"]})),
            ("Answer in JSON: list three colours.", dump({"colours": ["red", "green", "blue"]})),
            ("Answer in JSON: who are you?", dump({"name": "Bels", "kind": "tiny demo model"})),
            ("Answer in JSON: say hello.", dump({"message": "Hello!"})),
            ("Answer in JSON.", dump({"message": "Hello!"})),
            ("用 JSON 回答：你叫什么？", dump({"name": "小贝", "kind": "小小演示模型"})),
        ]
    )


def styled(rng: random.Random) -> tuple[Message, ...]:
    """Return a chat in which the system prompt sets the style or the name."""
    if rng.random() < 0.3:
        places = read_json("places.json")
        name = rng.choice([*places["names"], pseudo_name(rng)])
        asked, answer = rng.choice([("What is your name?", f"My name is {name}."), ("Who are you?", f"I am {name}.")])
        prompt = rng.choice([f"Your name is {name}.", f"You are {name}, a friendly assistant."])
        return ({"role": "system", "content": prompt}, user(rough(rng, asked)), assistant(answer))
    qa = rng.choice(styled_chats())
    return (
        {"role": "system", "content": rng.choice(qa.systems)},
        user(rough(rng, rng.choice(qa.questions))),
        assistant(qa.answer),
    )


def memory(rng: random.Random, *, held_out: bool = False) -> tuple[Message, ...]:
    """Return a chat in which the user tells a name or a colour and asks for it later."""
    places = read_json("places.json")
    between: list[Message] = []
    opening: list[Message] = []
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        question, answer = question_and_answer(rng)
        between += [user(question), assistant(answer)]
    if rng.random() < 0.35:
        name = rng.choice(places["names_zh_heldout" if held_out else "names_zh"])
        if not held_out and rng.random() < 0.5:
            name = pseudo_han(rng)
        told = rng.choice([f"我叫{name}。", f"你好，我叫{name}。", f"我的名字是{name}。"])
        asked = rng.choice(["我叫什么名字？", "我叫什么？", "你记得我的名字吗？", "我是谁？"])
        reply, answer = f"很高兴认识你，{name}！😊", f"你叫{name}。"
    else:
        name = rng.choice(places["names_heldout" if held_out else "names"])
        if not held_out and rng.random() < 0.5:
            name = pseudo_name(rng)
        told = rng.choice(
            [
                f"My name is {name}.",
                f"Hi, I am {name}.",
                f"Hello! My name is {name}.",
                f"I'm {name}.",
            ]
        )
        asked = rng.choice(["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"])
        reply, answer = f"Nice to meet you, {name}! 😊", f"Your name is {name}."
        pick = rng.random()
        if pick < 0.1:
            return (user(f"{told} {asked}"), assistant(answer))
        if pick < 0.2 and not held_out:
            unknown = "You have not told me your name yet."
            return (*between, user(rough(rng, asked)), assistant(unknown))
        if pick < 0.3 and not held_out:
            colour = rng.choice(["red", "blue", "green", "yellow", "purple", "orange", "black"])
            told = f"My favourite colour is {colour}."
            reply, asked = (
                f"{colour.capitalize()} is a nice colour!",
                "What is my favourite colour?",
            )
            answer = f"Your favourite colour is {colour}."
        elif pick > 0.7 and not held_out:
            # A greeting is not always followed by a name.
            names = next(qa for qa in chats() if "Hi, what is your name?" in qa.questions)
            opening = [user(rough(rng, rng.choice(names.questions))), assistant(names.answer)]
    return (
        *opening,
        user(rough(rng, told) if is_chinese(told) else told),
        assistant(reply),
        *between,
        user(rough(rng, asked)),
        assistant(answer),
    )


SINGLE_TURNS = (
    (question_and_answer, 40),
    (unknown_question, 14),
    (arithmetic, 10),
    (counting, 7),
    (capital, 5),
    (echo, 16),
    (json_answer, 6),
)


def single_turn(rng: random.Random) -> tuple[str, str]:
    """Return one question and its answer of any kind."""
    makers, weights = zip(*SINGLE_TURNS, strict=True)
    question, answer = rng.choices(makers, weights)[0](rng)
    return question, answer


def raw_text(rng: random.Random) -> Sample:
    """Return a document without chat marks: a paragraph, or a question and its answer."""
    if rng.random() < 0.55:
        # A prompt may end anywhere, also inside of what would be one token of the whole text.
        text = rng.choice(read_jsonl_cached("raw.jsonl"))["text"]
        end = rng.choice([0, rng.randint(1, len(text) - 1), rng.randint(1, min(60, len(text) - 1))])
        return Sample(prompt=text[:end], text=text[end:])
    if rng.random() < 0.25:
        question, answer = rng.choice([unknown_question, arithmetic, counting, capital])(rng)
    else:
        question, answer = question_and_answer(rng)
    gap = "" if is_chinese(question) else " "
    return Sample(prompt=question.rstrip() or question, text=gap + answer)


@cache
def read_jsonl_cached(name: str) -> tuple[Any, ...]:
    """Return the rows of ``data/<name>``, read once."""
    return tuple(read_jsonl(name))


def conversation(rng: random.Random) -> tuple[Message, ...]:
    """Return a long chat of unrelated turns, to train far positions as well."""
    turns: list[Message] = []
    for _ in range(rng.choice([2, 3, 4, 6, 12])):
        question, answer = single_turn(rng)
        turns += [user(question), assistant(answer)]
    return tuple(turns)


def written_conversation(rng: random.Random) -> tuple[Message, ...]:
    """Return one of the hand-written chats of several turns."""
    turns = rng.choice(read_jsonl_cached("multi_turn.jsonl"))["turns"]
    return tuple(user(rough(rng, text)) if index % 2 == 0 else assistant(text) for index, text in enumerate(turns))


def plain_sample(rng: random.Random) -> Sample:
    """Return a sample without tools."""
    pick = rng.random()
    if pick < 0.14:
        return raw_text(rng)
    if pick < 0.20:
        return Sample(messages=styled(rng))
    if pick < 0.30:
        return Sample(messages=system_turn(rng) + memory(rng))
    if pick < 0.33:
        return Sample(messages=system_turn(rng) + written_conversation(rng))
    if pick < 0.37:
        return Sample(messages=system_turn(rng) + conversation(rng))
    question, answer = single_turn(rng)
    return Sample(messages=(*system_turn(rng), user(question), assistant(answer)))
