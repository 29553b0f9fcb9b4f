from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.launcher.logs import LoadWatcher, LogFollower, first_line, tail, worth_showing

PREFIX = "1121 10:42:51.297714 4618 model_lifecycle.cc:642]"


def watch(*lines: str) -> LoadWatcher:
    watcher = LoadWatcher()
    for line in lines:
        watcher.feed(line)
    return watcher


def test_progress_is_followed() -> None:
    # The image's lines have no quotes.
    watcher = watch(f'I{PREFIX} "loading: a:1"', f"I{PREFIX} loading: b:1")
    assert watcher.waiting == ["a", "b"]
    assert watcher.feed(f"I{PREFIX} \"successfully loaded 'a'\"") == "loaded a"
    assert watcher.waiting == ["b"]
    assert watcher.reason() is None


def test_the_steps_of_an_engine_in_a_process_of_its_own() -> None:
    """As vLLM 0.32's processes log them, two workers among them."""
    watcher = watch()

    def told(line: str) -> tuple[str | None, str]:
        return watcher.feed(f'I{PREFIX} "engine: {line}"'), watcher.engine_step

    shards = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.9it/s]"
    loading = "(Worker_TP0 pid=3) INFO 11-24 04:38:16 [gpu_model_runner.py:5040] Starting to load model /m..."
    assert told("importing vLLM") == ("engine: importing vLLM", "importing vLLM")
    assert told(loading) == ("engine: loading weights", "loading weights")
    assert told(shards) == (None, "loading weights, 2/4")
    graphs = "Capturing CUDA graphs (decode, FULL):  35%|███▌      | 18/51 [00:01<00:02, 12.9it/s]"
    assert told(graphs) == ("engine: capturing CUDA graphs", "capturing CUDA graphs, 18/51")
    assert told(loading.replace("TP0", "TP1")) == (None, "capturing CUDA graphs, 18/51")
    assert told("(EngineCore pid=2) INFO 11-24 04:38:17 [utils.py:347] Using LBHNC KV cache layout.")[0] is None
    # A second engine, or the same one again.
    assert told("importing vLLM")[0] == "engine: importing vLLM"
    assert watch("engine: importing vLLM").engine_step == "", "what a client had logged is no news"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [
                f"E{PREFIX} \"failed to load 'bad' version 1: Internal: ValueError: no engine here"
                '\\nsecond line\\n\\nAt:\\n  /m/model.py(3): initialize\\n"',
                "error: creating server: Internal - failed to load all models",
            ],
            "model bad failed to load: ValueError: no engine here",
        ),
        # The cause goes before its consequences.
        (
            [
                f"E{PREFIX} \"failed to load 'e' version 1: Invalid argument: ensemble 'e' depends on 'b'"
                ' which has no loaded version"',
                f"E{PREFIX} \"failed to load 'b' version 1: Internal: boom\"",
            ],
            "model b failed to load: boom",
        ),
        (
            [f"E{PREFIX} \"Poll failed for model directory 'x': failed to read text proto\""],
            "model x failed to load: failed to read text proto",
        ),
        (
            ["[err] /libevent/signal.c: socketpair: Too many open files"],
            "Too many open files: raise the limit on them (ulimit -n)",
        ),
    ],
)
def test_failure_is_one_line(lines: list[str], reason: str) -> None:
    assert watch(*lines).reason() == reason


def test_bad_flag_is_fatal_and_its_help_is_recognised() -> None:
    watcher = watch("/bin/tritonserver: unrecognized option '--foo'", "Usage: tritonserver [o]")
    assert watcher.reason() == "unrecognized option '--foo'"
    assert watcher.in_usage


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f'I{PREFIX} "loading: a:1"', False),
        (f'W{PREFIX} "slow"', True),
        (f'E{PREFIX} "CudaDriverHelper has not been initialized."', False),
        (
            f"E{PREFIX} \"Invalid argument: ensemble 'e' depends on 'a' which has no loaded version. Model 'a' ...\"",
            False,
        ),
        ("| Model | Version |", False),
        ("+-------+---------+", False),
        ("", False),
        ("Traceback (most recent call last):", True),
    ],
)
def test_lines_worth_showing(line: str, shown: bool) -> None:
    assert worth_showing(line) is shown


def test_models_that_hang_up_are_news_unless_the_server_stops() -> None:
    line = f'W{PREFIX} "the connection to the engine is lost"'
    assert worth_showing(line)
    assert not worth_showing(line, stopping=True)
    assert worth_showing(f'E{PREFIX} "the engine died: RuntimeError"', stopping=True)


def test_first_line_loses_the_status_code() -> None:
    assert first_line("Internal: Unavailable: x\\ny") == "x"
    assert first_line("Internal: TritonModelException: no engine\\n\\nAt:\\n  model.py(33)") == "no engine"


def test_follower_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntw")
    follower = LogFollower(path)
    assert follower.lines() == ["one"]
    with path.open("a") as log:
        log.write("o\n")
    assert follower.lines() == ["two"]
    assert follower.lines() == []
    follower.close()
    assert tail(path, 1) == "two"


@pytest.mark.parametrize("keep_bytes", [None, 1, 5, 100])
def test_a_follower_tells_every_line_of_a_file_that_it_empties(tmp_path: Path, keep_bytes: int | None) -> None:
    path = tmp_path / "log"
    path.touch()
    follower = LogFollower(path, keep_bytes)
    told: list[str] = []
    sizes = []
    with path.open("ab", buffering=0) as log:
        for count in range(50):
            log.write(b"line %d\nand " % count)
            told += follower.lines()
            assert follower.lines() == []
            sizes.append(path.stat().st_size)
    follower.close()
    assert told == ["line 0", *(f"and line {count}" for count in range(1, 50))]
    if keep_bytes is None:
        assert sizes == sorted(set(sizes))
    else:
        assert all(size < keep_bytes for size in sizes)
