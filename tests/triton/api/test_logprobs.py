"""Log-probabilities on /v1 are transformers' own, with raw bytes and right offsets, whole and streamed."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.triton.conftest import CHATS, RAW, Golden
from tests.triton.reference import Place, Reference, load_reference

pytestmark = pytest.mark.triton

TOLERANCE = 1e-3
SEVERAL = {"What is machine learning?", "你好，请问你叫什么？", "Say hi with an emoji 🎉", "🎉 Party time!"}


def some(goldens: list[Golden]) -> list[Golden]:
    """Plain text, and text of which a character takes several tokens."""
    found = [golden for golden in goldens if golden.label in SEVERAL]
    assert len(found) >= 3
    return found


def check_chat(content: list[dict[str, Any]], places: list[Place], token_ids: list[int], k: int) -> None:
    """`choice.logprobs.content` against what the model gives."""
    assert [bytes(entry["bytes"]) for entry in content] == [load_reference().raw(token_id) for token_id in token_ids]
    for entry, place in zip(content, places, strict=True):
        assert entry["logprob"] == pytest.approx(place.logprob, abs=TOLERANCE)
        got = entry["top_logprobs"]
        assert [one["logprob"] for one in got] == pytest.approx([value for _, value in place.top], abs=TOLERANCE)
        # Tokens that are nearly as likely as each other may stand in either order.
        expected = dict(place.top)
        for one in got:
            raw = bytes(one["bytes"])
            if raw in expected:
                assert one["logprob"] == pytest.approx(expected[raw], abs=TOLERANCE)
        assert len({bytes(one["bytes"]) for one in got}) == k
        if k:
            assert bytes(got[0]["bytes"]) == place.top[0][0]


@pytest.mark.parametrize("k", [0, 5])
def test_chat(client: openai.OpenAI, reference: Reference, k: int) -> None:
    for golden in some(CHATS):
        prompt = reference.prompt_token_ids(golden)
        token_ids = reference.output_ids(golden)
        places = reference.places([*prompt, *token_ids], k)[len(prompt) - 1 :]
        options: Any = {
            "model": "openai_bls",
            "messages": golden.messages,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": k,
        }
        choice = client.chat.completions.create(**options).choices[0]
        assert choice.logprobs is not None
        content = [entry.model_dump() for entry in choice.logprobs.content or []]
        check_chat(content, places, token_ids, k)
        raw = b"".join(bytes(entry["bytes"]) for entry in content)
        assert raw.decode() == choice.message.content == golden.answer

        text, streamed = "", []
        for chunk in client.chat.completions.create(stream=True, **options):
            delta = chunk.choices[0]
            entries = delta.logprobs.content or [] if delta.logprobs else []
            streamed += [entry.model_dump() for entry in entries]
            text += delta.delta.content or ""
            # Whatever text has come, the tokens that it is made of have come too.
            assert b"".join(bytes(entry["bytes"]) for entry in streamed).startswith(text.encode())
        assert text == golden.answer
        check_chat(streamed, places, token_ids, k)


def name_of(raw: bytes) -> str:
    """A token as OpenAI's completions write it; one that is part of a character by its bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def offsets_of(pieces: list[bytes]) -> list[int]:
    """How many characters are complete before each of the pieces."""
    return [len(b"".join(pieces[:i]).decode(errors="ignore")) for i in range(len(pieces))]


def joined(chunks: Any) -> tuple[str, dict[str, list[Any]]]:
    """The text and the log-probabilities of a streamed completion."""
    text, together = "", dict[str, list[Any]]()
    for chunk in chunks:
        choice = chunk.choices[0]
        text += choice.text
        if choice.logprobs is not None:
            for name, values in choice.logprobs.model_dump(exclude_unset=True).items():
                together.setdefault(name, []).extend(values)
            assert all(offset <= len(text) for offset in together["text_offset"])
    return text, together


def check_completion(found: dict[str, list[Any]], places: list[Place], token_ids: list[int]) -> None:
    """`choice.logprobs` of a completion, of tokens from the second on if `places` are one fewer."""
    own = [place.logprob for place in places]
    start = len(token_ids) - len(own)
    assert found["token_logprobs"][:start] == found["top_logprobs"][:start] == [None] * start
    assert found["token_logprobs"][start:] == pytest.approx(own, abs=TOLERANCE)
    assert found["text_offset"] == offsets_of([load_reference().raw(token_id) for token_id in token_ids])
    assert found["tokens"] == [name_of(load_reference().raw(token_id)) for token_id in token_ids]
    rows = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    for (token, logprob, top), place in zip(list(rows)[start:], places, strict=True):
        # The likeliest ones, and the token itself wherever it stands.
        expected = {name_of(raw): value for raw, value in place.top} | {token: place.logprob}
        assert top == pytest.approx(expected, abs=TOLERANCE)
        assert top[token] == logprob


def check_text(client: openai.OpenAI, text: str, places: list[Place], token_ids: list[int], **options: Any) -> None:
    """A greedy completion, whole and streamed."""
    options |= {"model": "openai_bls", "temperature": 0}
    choice = client.completions.create(**options).choices[0]
    assert choice.logprobs is not None
    streamed = joined(client.completions.create(stream=True, **options))
    for said, found in ((choice.text, choice.logprobs.model_dump(exclude_unset=True)), streamed):
        assert said == text
        check_completion(found, places, token_ids)


@pytest.mark.parametrize("k", [0, 3])
def test_completions(client: openai.OpenAI, reference: Reference, k: int) -> None:
    for golden in some(RAW):
        prompt = reference.prompt_token_ids(golden)
        token_ids = reference.output_ids(golden)
        places = reference.places([*prompt, *token_ids], k)[len(prompt) - 1 :]
        check_text(client, golden.answer, places, token_ids, prompt=golden.raw, max_tokens=200, logprobs=k)


@pytest.mark.parametrize("max_tokens", [0, 6])
def test_echo(client: openai.OpenAI, reference: Reference, max_tokens: int) -> None:
    """The prompt's log-probabilities too; with no token to generate they alone."""
    for golden in some(RAW):
        prompt = reference.prompt_token_ids(golden)
        token_ids = [*prompt, *reference.token_ids(golden, 6)[:max_tokens]]
        text = (golden.raw or "") + reference.decode(token_ids[len(prompt) :])
        options = {"prompt": golden.raw, "max_tokens": max_tokens, "logprobs": 2, "echo": True}
        check_text(client, text, reference.places(token_ids, 2), token_ids, **options)


def test_sampled_tokens_have_the_models_own(client: openai.OpenAI, reference: Reference) -> None:
    """Whatever bias, penalty and temperature they were drawn with, and for each choice."""
    messages: Any = [{"role": "user", "content": "zyx"}]
    answer = client.chat.completions.create(
        model="openai_bls",
        messages=messages,
        temperature=2,
        top_p=1,
        seed=3,
        n=3,
        max_tokens=12,
        presence_penalty=1.5,
        logit_bias={"100": 12},
        logprobs=True,
        top_logprobs=2,
        extra_body={"top_k": -1, "min_tokens": 12},
    )
    prompt = reference.chat(messages)
    surprises = 0
    for choice in answer.choices:
        assert choice.logprobs is not None
        content = [entry.model_dump() for entry in choice.logprobs.content or []]
        token_ids = [reference.id_of(bytes(entry["bytes"])) for entry in content]
        assert len(token_ids) == 12
        check_chat(content, reference.places([*prompt, *token_ids], 2)[len(prompt) - 1 :], token_ids, 2)
        surprises += sum(entry["logprob"] < entry["top_logprobs"][0]["logprob"] for entry in content)
    assert surprises > 0
