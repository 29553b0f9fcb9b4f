"""`bench`: what is sent, what is measured, and which tool does it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from openai_bls.commands import main as cli
from openai_bls.terminal.bench import aiperf, command, summary
from openai_bls.terminal.bench.load import Level, Load, Measured, Sample
from openai_bls.terminal.bench.prompts import Prompts
from openai_bls.terminal.connection import Connection
from tests.unit.terminal.support import FakeServer

LIMITS = summary.Limits(100.0, 10.0)


def bench(fake: FakeServer, *words: str) -> int:
    return cli.main(["bench", "--url", fake.url, "--tool", "own", "--requests", "3", *words])


def test_a_summary() -> None:
    samples = [Sample(0.05, 0.05 + 0.009 * 9, 20, 10), Sample(0.2, 0.2 + 0.02 * 9, 22, 10), Sample(error="x")]
    found = summary.summarize(Measured(Level(3, concurrency=2), samples, 2.0), LIMITS)
    assert (found.requests, found.failed, found.errors) == (3, 1, {"x": 1})
    assert (found.ttft_p50_ms, found.ttft_p99_ms) == pytest.approx((50, 200))
    assert (found.itl_p50_ms, found.itl_p99_ms) == pytest.approx((9, 20))
    assert (found.tokens_per_s, found.requests_per_s, found.goodput_per_s) == (10.0, 1.0, 0.5)


def test_percentiles_are_the_nearest_rank() -> None:
    values = list(map(float, range(1, 201)))
    assert (summary.percentile(values, 50), summary.percentile(values, 99)) == (100.0, 198.0)
    assert summary.percentile([3.0], 99) == 3.0
    assert summary.percentile([], 50) is None


def test_prompts_are_as_long_as_the_server_counts(fake: FakeServer) -> None:
    """It counts two tokens for a word and five for the template."""
    prompts = Prompts(101, seed=0)
    prompts.fit(Connection(fake.url, "", 10), "small")
    assert prompts.words == 48
    assert len({prompts.next() for _ in range(20)}) == 20


def test_table_json_and_plot(fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, plot = tmp_path / "found.json", tmp_path / "found.png"
    fits = ["--prompt-tokens", "25", "--output-tokens", "2"]
    assert bench(fake, "--concurrency", "1,2", *fits, "--output", str(output), "--plot", str(plot)) == 0
    found = json.loads(output.read_text())
    assert [(load["concurrency"], load["requests"], load["failed"]) for load in found["loads"]] == [
        (1, 3, 0), (2, 3, 0),
    ]  # fmt: skip
    assert {load["prompt_tokens"] for load in found["loads"]} == {25.0}
    assert plot.read_bytes().startswith(b"\x89PNG")
    # Two probes, two to warm up, six.
    assert len(fake.asked) == 10
    assert fake.asked[-1] | {"messages": []} == {
        "model": "small", "messages": [], "max_tokens": 2, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert "goodput" in capsys.readouterr().out


def test_failures_are_counted_and_told(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.breaks_off = True
    assert bench(fake, "--concurrency", "2", "--warm-up", "0") == 1
    assert "failed, 3 times: an answer that broke off" in capsys.readouterr().out
    fake.refuses = 503
    assert bench(fake) == 2
    assert "the server answers 503: it is too much" in capsys.readouterr().err


def test_an_open_loop_counts_from_when_a_request_was_due(fake: FakeServer) -> None:
    load = Load(Connection(fake.url, "", 10), {"model": "small"}, lambda: "Hello", seed=1)
    measured = asyncio.run(load.run(Level(20, rate=400.0)))
    assert [sample.error for sample in measured.samples] == [""] * 20
    assert all(0 < sample.first_s <= sample.total_s for sample in measured.samples)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plot", "found.pdf"], "must end in .svg or .png"),
        (["--output", "/no/such/folder/x"], "there is no folder /no/such/folder"),
        (["--model", "other"], "has no model 'other'; it serves small, large"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    fake: FakeServer, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(fake, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("words", [["--rate", "0"], ["--concurrency", "1,0"], ["--rate", "1", "--concurrency", "1"]])
def test_loads_that_are_none(words: list[str], fake: FakeServer) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(fake, *words)
    assert ended.value.code == 2


def test_how_many_requests() -> None:
    def of(*words: str) -> list[Level]:
        return command.levels(cli.parse("bench", words))

    assert of() == [Level(16, 1), Level(32, 8), Level(128, 32)]
    assert of("--rate", "1,4") == [Level(16, rate=1.0), Level(40, rate=4.0)]
    assert of("--requests", "5", "--concurrency", "2") == [Level(5, 2)]


def test_aiperf_where_it_is_installed(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho ran: $*\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    words = ["--tokenizer", "t", "--concurrency", "2", "--requests", "3", "--warm-up", "0"]
    assert cli.main(["bench", "--url", fake.url, *words]) == 0
    printed, ran, *_ = capfd.readouterr().out.splitlines()
    assert printed.startswith(f"{aiperf.program()} profile --model small --url {fake.url.removesuffix('/v1')} ")
    assert "--concurrency 2 --request-count 3 " in printed
    assert "--use-server-token-count" in printed
    assert "warmup" not in printed
    assert "secret" not in printed
    assert ran.endswith("--api-key secret")
    assert not fake.asked

    assert cli.main(["bench", "--url", fake.url, "--requests", "3", "--concurrency", "1"]) == 0
    assert "aiperf is installed and not used: it needs a --tokenizer" in capfd.readouterr().out
