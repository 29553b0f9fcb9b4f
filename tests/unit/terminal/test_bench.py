"""`bench`: the command lines of aiperf, by a program of that name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openai_bls.commands import main as cli
from tests.unit.terminal.support import FakeServer

PROGRAM = """\
#!/bin/sh
echo "ran: $*"
while [ $# -gt 1 ]; do
    [ "$1" = --config ] && grep -q 'api_key: "${OPENAI_BLS_BENCH_KEY}"' "$2" && echo "key: $OPENAI_BLS_BENCH_KEY"
    shift
done
exit ${STATUS:-0}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "aiperf"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return path


def bench(fake: FakeServer, *words: str) -> int:
    return cli.main(["bench", "--url", fake.url, *words])


def test_one_run_for_each_load(fake: FakeServer, program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--concurrency", "1,8", "--prompt-tokens", "25", "--output-tokens", "2", "--tokenizer", "t"]
    assert bench(fake, *words, "--", "--ui", "none") == 0
    printed, ran, second, _ = capfd.readouterr().out.splitlines()
    host = fake.url.removesuffix("/v1")
    told = printed.removeprefix(f"{program} ")
    assert ran == f"ran: {told}".replace("'", "")
    assert told.startswith(f"profile --model small --url {host} --custom-endpoint /v1/chat/completions ")
    for option in (
        "--streaming", "--concurrency 1 --request-count 16 --num-dataset-entries 18", "--tokenizer t",
        "--synthetic-input-tokens-mean 25",
        "--output-tokens-mean 2", "--extra-inputs ignore_eos:true", "--warmup-request-count 2", "--random-seed 0",
        "--goodput 'time_to_first_token:1000 inter_token_latency:50'",
    ):  # fmt: skip
        assert f" {option} " in told
    assert told.endswith(" --ui none")
    assert " --concurrency 8 --request-count 32 " in second
    assert not fake.asked


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rate", "1.5"], "--request-rate 1.5 --arrival-pattern poisson --request-count 16"),
        (["--rate", "4"], "--request-rate 4 --arrival-pattern poisson --request-count 40"),
        (["--requests", "5", "--concurrency", "2"], "--concurrency 2 --request-count 5"),
    ],
)
def test_how_many_requests(
    fake: FakeServer, program: Path, capfd: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert bench(fake, *words, "--warm-up", "0", "--no-ignore-eos") == 0
    printed = capfd.readouterr().out.splitlines()[0]
    assert f" {told} " in printed
    assert "warmup" not in printed
    assert "ignore_eos" not in printed


def test_a_key_is_on_no_command_line(
    fake: FakeServer, program: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.key = "secret"
    monkeypatch.setenv("OPENAI_API_KEY", fake.key)
    assert bench(fake, "--concurrency", "1") == 0
    printed, ran, key = capfd.readouterr().out.splitlines()
    assert "secret" not in printed + ran
    assert key == "key: secret"


def test_a_run_that_fails_is_the_last(
    fake: FakeServer, program: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS", "3")
    assert bench(fake) == 3
    assert capfd.readouterr().out.count("ran: ") == 1


def test_without_aiperf(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench(fake) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "`pipx install aiperf`" in error


@pytest.mark.parametrize("words", [["--rate", "0"], ["--concurrency", "1,0"], ["--rate", "1", "--concurrency", "1"]])
def test_loads_that_are_none(words: list[str], fake: FakeServer) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(fake, *words)
    assert ended.value.code == 2
