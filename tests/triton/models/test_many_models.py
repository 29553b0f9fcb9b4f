"""Four engines in one server: the demo's, a tiny random Llama with a vocabulary of its own, a Mamba 2, which needs the
embedded engine's other runner, and a null engine that has an adapter."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton import triton_client
from tests.triton.conftest import ANSWERED, SHORT_CHATS
from tests.triton.conversations import QUESTION
from tests.triton.metrics import find, scrape
from tests.triton.reference import Reference
from tests.waiting import until

pytestmark = pytest.mark.triton

TIMEOUT = 120.0
MAX_TOKENS = 24
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SIZES: dict[str, dict[str, int]] = {
    "llama": {
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 8},
}
PROMPTS = ["Hello there", "What is 机器学习?", "one two three 🤷"]
# The null engine's tokens, in the Llama's vocabulary; an adapter shifts them by one.
LETTERS = "abc"


def make_checkpoint(folder: Path, model_type: str) -> None:
    """A random model with spread-out logits, and a byte-fallback tokenizer as Llama's own: nothing like the demo's."""
    ascii_characters = [chr(code) for code in range(0x21, 0x7F)]
    words = ["▁", *ascii_characters, *"机器学习你好é", "th", "the", "▁the", "in", "ing"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("in", "g")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    torch.manual_seed(3)
    config = CONFIG_MAPPING[model_type](
        vocab_size=len(tokens),
        hidden_size=64,
        num_hidden_layers=2,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
        **SIZES[model_type],
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


class SmallReference:
    """What transformers itself makes of a small model."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def text(self, prompt: list[int]) -> str:
        """What the new tokens add to the prompt's text, which a prompt that ends in byte tokens shares with them."""
        with torch.inference_mode():
            output = self._model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=MAX_TOKENS)
        before, after = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, output[0].tolist()))
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        text: str = after[len(list(shared)) :]
        return text

    def chat_ids(self, text: str) -> list[int]:
        rendered = self.tokenizer.apply_chat_template(chat(text), tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer.encode(rendered, add_special_tokens=False)
        return ids

    def chat(self, text: str) -> str:
        return self.text(self.chat_ids(text))


def chat(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "tiny-llama"
    make_checkpoint(folder, "llama")
    return folder


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mamba") / "tiny-mamba"
    make_checkpoint(folder, "mamba2")
    return folder


@pytest.fixture(scope="module")
def small(checkpoint: Path) -> SmallReference:
    return SmallReference(checkpoint)


@pytest.fixture(scope="module")
def server(
    repository: Path, checkpoint: Path, mamba: Path, small: SmallReference, tmp_path_factory: Any
) -> Iterator[RunningServer]:
    copy = tmp_path_factory.mktemp("many") / "model_repository"
    shutil.copytree(repository, copy)
    # Each is tested by its load, in a process that the server has anyway.
    build(BuildOptions(str(checkpoint), copy, "transformers", name="small", self_test=False), print)
    build(BuildOptions(str(mamba), copy, "transformers", name="mamba", max_model_len=4096, self_test=False), print)
    build(BuildOptions(str(checkpoint), copy, name="fixed", engine="null", served_model_name="fixed"), print)
    env = {
        "OPENAI_BLS_ENGINE_NULL_TOKEN_IDS": ",".join(str(small.tokenizer.convert_tokens_to_ids(c)) for c in LETTERS),
        "OPENAI_BLS_ENGINE_NULL_LORA_NAMES": "poet",
        "OPENAI_BLS_ENGINE_NUM_THREADS": "1",
    }
    with run_server(copy, env=env, args=["--model-control-mode=explicit", "--load-model=*"]) as running:
        # /v1 opens with the default engine; the others come when openai_bls has found them.
        until(lambda: len({card["root"] for card in cards(running)}) == 4, TIMEOUT)
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        yield client


def cards(server: RunningServer) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = httpx.get(f"{server.openai_url}/models", timeout=TIMEOUT).json()["data"]
    return data


def post(server: RunningServer, model: str, text: str) -> httpx.Response:
    body = {"model": model, "messages": chat(text), "temperature": 0, "max_tokens": MAX_TOKENS}
    return httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=TIMEOUT)


def answer(response: httpx.Response) -> str:
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def test_listing(server: RunningServer, client: openai.OpenAI) -> None:
    """Aliases go with the default engine; an adapter has the model that it belongs to for a parent."""
    listed = {card["id"]: (card["root"], card["parent"], card["max_model_len"]) for card in cards(server)}
    assert listed == {
        "demo": ("demo", None, 2048),
        "openai_bls": ("demo", None, 2048),
        "fixed": ("fixed", None, 512),
        "tiny-llama": ("tiny-llama", None, 512),
        "tiny-mamba": ("tiny-mamba", None, 4096),
        "poet": ("fixed", "fixed", 512),
    }
    assert cards(server)[0]["id"] == "demo"
    assert client.models.retrieve("tiny-llama").id == "tiny-llama"


def test_a_model_without_a_kv_cache(server: RunningServer, mamba: Path) -> None:
    """Answers of the runner with a cache for each sequence, streamed beside one that its client leaves."""
    reference = SmallReference(mamba)
    asked: Any = {"model": "tiny-mamba", "temperature": 0, "stream": True}

    def load(name: str) -> float:
        return find(scrape(server), f"engine_{name}", model="tiny-mamba")

    async def talk() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", timeout=TIMEOUT) as client:

            async def answer(text: str) -> str:
                stream = await client.chat.completions.create(messages=chat(text), max_tokens=MAX_TOKENS, **asked)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            endless = await client.chat.completions.create(
                messages=chat("on and on"), max_tokens=4000, extra_body={"ignore_eos": True}, **asked
            )
            await anext(aiter(endless))
            answers = await asyncio.gather(*map(answer, PROMPTS))
            await endless.close()
            return answers

    before = load("steps_total")
    assert asyncio.run(talk()) == [reference.chat(text) for text in PROMPTS]
    until(lambda: load("steps_total") > before and not load("sequences_running"), TIMEOUT)
    # One was cut short, and the others went along with it.
    assert load("steps_total") - before < 4000


def test_each_model_gives_its_own_answers(
    server: RunningServer, client: openai.OpenAI, reference: Reference, small: SmallReference
) -> None:
    """Its own chat template, tokenizer, weights and detokenizer: the text is what transformers gives for each."""
    root = server.openai_url.removesuffix("/v1")
    for text in PROMPTS:
        expected = small.chat(text)
        assert expected != ""
        options: dict[str, Any] = {"model": "tiny-llama", "temperature": 0, "max_tokens": MAX_TOKENS}
        whole = client.chat.completions.create(messages=chat(text), **options)
        assert (whole.model, whole.choices[0].message.content) == ("tiny-llama", expected)
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len(small.chat_ids(text))
        raw = small.text(small.tokenizer(text)["input_ids"])
        assert client.completions.create(prompt=text, **options).choices[0].text == raw
        body = {"prompt": text, **options}
        said = triton_client.chat(server.http_url, body)
        assert (said["model"], said["choices"][0]["text"]) == ("tiny-llama", raw)
        assert triton_client.content(triton_client.chat_stream(server.http_url, body)) == raw
        for name, tokenizer in (("demo", reference.tokenizer), ("tiny-llama", small.tokenizer)):
            ids = httpx.post(f"{root}/tokenize", json={"model": name, "prompt": text}, timeout=TIMEOUT).json()["tokens"]
            assert ids == tokenizer(text)["input_ids"]
            body = {"model": name, "tokens": ids}
            assert httpx.post(f"{root}/detokenize", json=body, timeout=TIMEOUT).json() == {"prompt": text}
    for name in ("demo", "openai_bls"):
        default = client.chat.completions.create(model=name, messages=QUESTION, temperature=0)
        assert default.choices[0].message.content == ANSWERED.answer


def test_requests_to_all_at_once(server: RunningServer, reference: Reference, small: SmallReference) -> None:
    """Their ids come from different engines, and none gets another's tokens."""
    plan = [("tiny-llama", chat(text), small.chat(text)) for text in PROMPTS]
    plan += [("demo", golden.messages, reference.text(golden, MAX_TOKENS)) for golden in SHORT_CHATS[:3]]
    plan += [("fixed", chat("x"), LETTERS * (MAX_TOKENS // 3))]

    async def one(client: openai.AsyncOpenAI, model: str, messages: Any, expected: str) -> None:
        stream = await client.chat.completions.create(
            model=model, messages=messages, stream=True, temperature=0, max_tokens=MAX_TOKENS
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == expected, model

    async def everyone() -> None:
        async with openai.AsyncOpenAI(
            base_url=server.openai_url, api_key="none", max_retries=0, timeout=TIMEOUT
        ) as client:
            await asyncio.gather(*(one(client, *asked) for asked in plan * 4))

    asyncio.run(everyone())


def wait_until_unloaded(server: RunningServer, model: str) -> None:
    """Triton answers an unload before it has begun."""

    def state() -> tuple[str | None, str | None]:
        index = httpx.post(f"{server.http_url}/v2/repository/index", timeout=TIMEOUT).json()
        (entry,) = [entry for entry in index if entry["name"] == model]
        return entry.get("state"), entry.get("reason")

    until(lambda: state() == ("UNAVAILABLE", "unloaded"), TIMEOUT)


def test_one_engine_goes_and_comes_back(server: RunningServer, small: SmallReference) -> None:
    """With its adapter; the others stay."""
    control = f"{server.http_url}/v2/repository/models/tensorrt_llm_fixed"
    assert httpx.post(f"{control}/unload", timeout=TIMEOUT).status_code == 200
    wait_until_unloaded(server, "tensorrt_llm_fixed")
    response = post(server, "fixed", PROMPTS[0])
    assert response.status_code == 503
    assert "not available" in response.json()["error"]["message"]
    assert post(server, "demo", PROMPTS[0]).status_code == 200
    assert answer(post(server, "tiny-llama", PROMPTS[0])) == small.chat(PROMPTS[0])
    assert httpx.post(f"{control}/load", timeout=TIMEOUT).status_code == 200
    # Maybe before openai_bls has found it: the request waits.
    assert answer(post(server, "fixed", PROMPTS[0])).startswith("abc")
    assert answer(post(server, "poet", PROMPTS[0])).startswith("bca")
