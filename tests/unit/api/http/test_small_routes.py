"""Probes, metrics, and the endpoints about the server itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from openai_bls import __version__
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.http_support import application, asked
from tests.unit.core_support import Bench, ask, engine_info, until


def test_metrics_need_no_key_and_tell_of_requests_and_refusals() -> None:
    bench = Bench(api_key="k")
    bench.service.on_end = bench.service.metrics.ended
    bench.service.on_refused("embeddings", InvalidRequestError("no"), "")
    asked(bench, "/tokenize", {"prompt": "x"}, headers=(("authorization", "Bearer k"),))
    answered = asked(bench, "/metrics", method="GET")
    assert answered.status == 200
    assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answered.body.decode()
    assert 'openai_bls_requests_total{endpoint="tokenize",model="tiny",outcome="done"} 1.0\n' in text
    assert 'openai_bls_requests_total{endpoint="embeddings",model="",outcome="400"} 1.0\n' in text
    assert "# TYPE openai_bls_requests_total counter\n" in text
    assert "# TYPE openai_bls_time_to_first_token_seconds histogram\n" in text


async def test_ping_and_load() -> None:
    bench = Bench()
    app = application(bench)
    for method in ("GET", "POST"):
        answered = await ask(app, method, "/ping")
        assert (answered.status, answered.body) == (200, b"")
    assert (await ask(app, "GET", "/load")).json() == {"server_load": 0}
    task = asyncio.create_task(ask(app, "POST", "/v1/completions", {"prompt": "a"}))
    await until(lambda: bench.engine.requests)
    assert (await ask(app, "GET", "/load")).json() == {"server_load": 1}
    bench.engine.deliver(0, "b", "stop")
    await task
    bench.service.draining = True
    assert (await ask(app, "GET", "/ping")).status == 503


def test_the_prefix_cache_is_reset() -> None:
    bench = Bench()
    assert asked(bench, "/reset_prefix_cache").status == 200
    assert bench.engine.prefix_resets == 1


def test_tokenizer_info(tmp_path: Path) -> None:
    assert asked(Bench(), "/tokenizer_info", method="GET").status == 404
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "X", "chat_template": "{{ 1 }}"}')
    bench = Bench(tokenizer_info=True)
    assert asked(bench, "/tokenizer_info", method="GET").status == 404
    bench.model.tokenizer_dir = tmp_path
    found = asked(bench, "/tokenizer_info", method="GET").json()
    assert found == {"tokenizer_class": "X", "chat_template": "{{ 1 }}", "input_modalities": ["text"]}
    (tmp_path / "chat_template.jinja").write_text("{{ 2 }}")
    (tmp_path / "tokenizer_config.json").write_text("[")
    found = asked(bench, "/tokenizer_info", method="GET").json()
    assert found == {"tokenizer_class": None, "chat_template": "{{ 2 }}", "input_modalities": ["text"]}


def test_what_a_router_asks() -> None:
    bench = Bench(engine_info(input_modalities=("text", "image"), max_images=3))
    info = bench.model.info
    found = asked(bench, "/server_info", method="GET").json()
    assert found == {
        "served_model_name": "tiny",
        "context_length": info.max_model_len,
        "max_running_requests": info.max_batch_size,
        "version": __version__,
    }
    found = asked(bench, "/model_info", method="GET").json()
    assert found == {"is_generation": True, "has_image_understanding": True, "has_audio_understanding": False}
    assert asked(Bench(api_key="k"), "/server_info", method="GET").status == 401
