"""The runtime between an engine and a preprocessing of its own, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from openai_bls.core.engine_types import PromptRequest, PromptResult, TokenDelta
from openai_bls.core.keys import watched_files
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.lifecycle import removed_keys
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.repository.engines import Backend
from openai_bls.triton_models.tensorrt_llm_bls.runtime import Runtime
from tests.unit.core_support import FakeEngine, exchange_address, made_up_logprobs, token_ids, write_tokenizer
from tests.unit.triton_models.replies import TensorReply
from tests.unit.triton_models.tensorrt_llm_bls.test_requests import tensors


def prepare(request: PromptRequest) -> PromptResult:
    return PromptResult([token_ids(text) for text in request.prompts or []], [token_ids(w) for w in request.bad_words])


def call_model(model: str, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """A foreign preprocessing, called by BLS, which takes the requests of ours."""
    request = msgspec.msgpack.decode(inputs["PROMPT_REQUEST"].reshape(-1)[0], type=PromptRequest)
    return {"PROMPT_RESULT": np.array([msgspec.msgpack.encode(prepare(request))], dtype=np.object_)}


class Bench:
    def __init__(self, folder: Path, *, decoupled: bool = True, foreign: Path | None = None, **limits: Any) -> None:
        # Addresses are made of the names of models.
        name = Path(exchange_address()).name
        owner = os.getpid()
        self.exchange = ExchangeServer(address(f"engine-{name}", owner))
        self.engine = FakeEngine(self.exchange.on_step)
        self.exchange.start(self.engine)
        self.prompts = PromptExchangeServer(address(f"prompts-{name}", owner), prepare, 1)
        self.prompts.start()
        backend = Backend(f"engine-{name}", f"prompts-{name}", write_tokenizer(folder))
        if foreign is not None:
            backend = msgspec.structs.replace(backend, preprocessing_dir=foreign, prompt_transport="bls")
        settings = OpenAiBlsSettings(**limits)
        self.runtime = Runtime(
            backend,
            owner,
            call_model,
            exclude_input_default=True,
            decoupled=decoupled,
            limits=settings,
            api_keys=ApiKeys.of(settings),
        )
        self.runtime.start()

    def ask(self, count: int = 1, **values: Any) -> TensorReply:
        """A request of `count` sequences that the engine has got."""
        before = len(self.engine.submitted)
        reply = self.send(**values)
        self.engine.wait_for(lambda: len(self.engine.submitted) == before + count)
        return reply

    def send(self, parameters: dict[str, Any] | None = None, key: str = "", **values: Any) -> TensorReply:
        reply = TensorReply()
        self.runtime.accept(tensors(**{"text_input": "Hi ", "max_tokens": 50, **values}), reply, parameters, key)
        return reply

    def step(self, at: int, text: str, reason: Any = None, **more: Any) -> None:
        request = self.engine.submitted[at]
        ids = token_ids(text)
        if request.logprobs is not None:
            more["logprobs"] = made_up_logprobs(ids, 0)
        self.engine.step(TokenDelta(request.request_id, ids, reason, **more))

    def close(self) -> None:
        self.runtime.close()
        self.engine.close()
        self.exchange.close()
        self.prompts.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    assert bench.engine.live == {}


def test_an_answer_of_no_text_is_a_response(bench: Bench) -> None:
    for stream in (True, False):
        reply = bench.ask(stream=stream)
        bench.step(-1, "", "stop")
        reply.wait_end()
        assert reply.texts() == [""]


def test_stop_words_are_matched_in_the_text_and_end_the_engines_work(bench: Bench) -> None:
    """Whatever the tokens are; `stop_words` stay in the text, those of the LLM API do not."""
    kept, cut = bench.ask(stop_words=["d e"]), bench.ask(sampling_param_stop=["d e"], return_stop_reason=True)
    for at in (0, 1):
        bench.step(at, "abcd")
        bench.step(at, " efg")
    kept.wait_end()
    cut.wait_end()
    assert (kept.texts(), cut.texts()) == (["abcd e"], ["abc"])
    assert cut.sent[0]["stop_reason"][0] == b"d e"
    bench.engine.wait_for(lambda: len(bench.engine.cancelled) == 2)


def test_what_else_is_asked_for_is_in_the_last_response(bench: Bench) -> None:
    asked = ("finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens", "cumulative_logprob")
    for stream in (True, False):
        reply = bench.ask(stream=stream, **{f"return_{name}": True for name in asked})
        bench.step(-1, "ab")
        bench.step(-1, "c", "length")
        reply.wait_end()
        assert "".join(reply.texts()) == "abc"
        assert [name for sent in reply.sent[:-1] for name in sent if name in asked] == []
        last = {name: reply.sent[-1][name].item() for name in asked}
        assert last == {
            "finish_reason": b"length", "stop_reason": b"", "num_input_tokens": 3, "num_output_tokens": 3,
            "cumulative_logprob": -1.5,
        }  # fmt: skip


def test_a_stop_request_ends_the_request_of_its_id(bench: Bench) -> None:
    """A whole answer comes as far as it is there; a stream ends."""
    whole = bench.ask(parameters={"id": "a"}, return_finish_reason=True)
    stream, other = bench.ask(parameters={"id": "b"}, stream=True), bench.ask()
    for at in range(3):
        bench.step(at, "ab")
    stream.wait_for(lambda: stream.sent)
    for stopped, given_id in ((whole, "a"), (stream, "b")):
        stop = bench.send(parameters={"id": given_id}, text_input="", max_tokens=0, stop=True)
        stop.wait_end()
        stopped.wait_end()
        assert [sent["text_output"].tolist() for sent in stop.sent] == [[b""]]
        assert stopped.texts() == ["ab"]
    assert whole.sent[0]["finish_reason"].tolist() == [b"cancelled"]
    # The engine is told after the client.
    bench.engine.wait_for(lambda: set(bench.engine.live) == {bench.engine.submitted[2].request_id})
    bench.step(2, "c", "stop")
    other.wait_end()
    unknown, nameless = bench.send(parameters={"id": "a"}, stop=True), bench.send(stop=True)
    unknown.wait_end()
    nameless.wait_end()
    assert (unknown.error, len(unknown.sent)) == (None, 1)
    assert nameless.error is not None
    assert (nameless.error.status, nameless.error.param) == (400, "stop")


def test_a_client_that_has_gone_frees_its_slots(bench: Bench) -> None:
    gone, other = bench.ask(2, num_return_sequences=2, stream=True), bench.ask(stream=True)
    bench.step(0, "a")
    gone.gone = True
    gone.wait_end()
    bench.engine.wait_for(lambda: len(bench.engine.cancelled) == 2)
    # The engine is told after the client.
    bench.engine.wait_for(lambda: set(bench.engine.live) == {bench.engine.submitted[2].request_id})
    bench.step(2, "b", "stop")
    other.wait_end()
    assert other.texts() == ["b"]


def test_errors(bench: Bench) -> None:
    """Before output and after it, of the request and of the engine; nobody else is disturbed."""
    other = bench.ask(stream=True)
    refused = bench.send(top_p=7.0)
    refused.wait_end()
    assert refused.error is not None
    assert (refused.error.status, refused.error.param) == (400, "top_p")
    for reason in (True, False):
        failed = bench.ask(stream=True)
        bench.step(-1, "a")
        failed.wait_for(lambda failed=failed: failed.sent)  # type: ignore[misc]
        bench.step(-1, "", "error", error="broken", invalid=reason)
        failed.wait_end()
        assert failed.error is not None
        assert failed.error.status == (400 if reason else 500)
    bench.step(0, "b", "stop")
    other.wait_end()
    assert other.texts() == ["b"]


def test_one_response_per_request(tmp_path: Path) -> None:
    bench = Bench(tmp_path, decoupled=False)
    for values, name in (({"stream": True}, "stream"), ({"num_return_sequences": 2}, "num_return_sequences")):
        refused = bench.send(**values)
        refused.wait_end()
        assert refused.error is not None
        assert f"'{name}'" in refused.error.message
    reply = bench.ask()
    bench.step(0, "ab", "stop")
    reply.wait_end()
    assert reply.texts() == ["ab"]
    bench.close()


def test_a_shutdown_ends_what_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.ask(stream=True)
    bench.step(0, "a")
    bench.close()
    assert running.finals == 1
    assert running.error is not None
    assert running.error.status == 503


def test_what_runs_for_a_removed_key_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(removed_keys, "CHECK_INTERVAL_S", 0.01)
    keys = tmp_path / "keys"
    keys.write_text("alice: a\nbob: b\n")
    bench = Bench(tmp_path / "tokenizer", api_keys_file=str(keys))
    stream, whole, *others = (
        bench.ask(key=key, stream=streamed)
        for key, streamed in (("alice", True), ("alice", False), ("bob", True), ("", True))
    )
    bench.step(0, "a")
    stream.wait_for(lambda: stream.sent)
    keys.write_text("bob: b\n")
    for reply in (stream, whole):
        reply.wait_end()
        assert reply.error is not None
        assert reply.error.code == "invalid_api_key"
    bench.engine.wait_for(lambda: len(bench.engine.cancelled) == 2)
    for at, reply in enumerate(others, 2):
        bench.step(at, "ok", "stop")
        reply.wait_end()
        assert reply.texts() == ["ok"]
    bench.close()


def test_a_foreign_preprocessing_is_called_by_bls(tmp_path: Path) -> None:
    foreign = tmp_path / "preprocessing"
    foreign.mkdir()
    (foreign / "config.pbtxt").write_text(
        'input [ { name: "QUERY" data_type: TYPE_STRING dims: [ 1 ] },'
        '  { name: "PROMPT_REQUEST" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]\n'
        'output [ { name: "INPUT_ID" data_type: TYPE_INT32 dims: [ -1 ] },'
        '  { name: "PROMPT_RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    )
    bench = Bench(tmp_path / "tokenizer", foreign=foreign)
    reply = bench.ask()
    assert bench.engine.submitted[0].prompt_token_ids == token_ids("Hi ")
    bench.step(0, "ab", "stop")
    reply.wait_end()
    assert reply.texts() == ["ab"]
    bench.close()
