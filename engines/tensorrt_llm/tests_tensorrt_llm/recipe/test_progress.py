"""Progress: steps told by log lines, shown as lines or, on a terminal, as a bar."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import sys
import termios

import pytest

from openai_bls_tensorrt_llm.recipe.worker.main import STAGE
from openai_bls_tensorrt_llm.recipe.worker.progress import LogReader, Progress, Step

# Of a quantized build with two ranks, as TensorRT-LLM 1.x, ModelOpt and tqdm write.
LOG = [
    (f"{STAGE}import", Step("import")),
    ("[TensorRT-LLM] TensorRT-LLM version: 1.2.1", None),
    (f"{STAGE}load", Step("load")),
    ("\x1b[38;20mLoading Model: \x1b[0m\x1b[1;32m[1/3]\t\x1b[0mDownloading HF model", Step("download")),
    ("Loading Model: [2/3]\tLoading HF model to memory", Step("load")),
    ("Loading checkpoint shards:  25%|██▌       | 1/4 [00:14<00:44, 14.79s/it]", Step("load", 1, 4)),
    ("Inserted 339 quantizers", Step("calibrate", 0, 512)),
    ("Calibrating batch 15", Step("calibrate", 16, 512)),
    ("calibrating model:  12%|█▎        | 64/512 [00:10<01:10,  6.4it/s]", Step("calibrate", 64, 512)),
    ("Loading Model: [3/3]\tBuilding TRT-LLM engine", Step("build", 0, 2)),
    ("[11/21/2026-20:00:00] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:02:12", Step("build", 1, 2)),
    ("[11/21/2026-20:00:00] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:02:13", Step("build", 2, 2)),
    ("[11/21/2026-20:00:00] [TRT-LLM] [I] Total time of building all engines: 00:04:25", None),
    ("[TRT-LLM] [I] Serializing engine to /w/rank0.engine...", Step("save")),
    ("Loading weights:  50%|#####     | 2/4", None),
    (f"{STAGE}nonsense", None),
]


def test_the_log_of_a_build() -> None:
    reader = LogReader(2, 512)
    for line, step in LOG:
        assert reader.read(line) == step, line


def test_lines() -> None:
    """One for each stage and each tenth of it, with the time; not where the output is no terminal for a bar."""
    lines: list[str] = []
    shown = Progress(lines.append, io.StringIO())
    shown.show(Step("load"))
    shown.show(Step("load"))
    for done in range(101):
        shown.show(Step("calibrate", done, 100))
    shown.show(Step("calibrate", 50, 100))
    shown.tick()
    shown.show(Step("build", 0, 1))
    shown.close()
    assert lines[0] == "[0:00] loading and converting the checkpoint"
    assert [line.partition("] ")[2] for line in lines[1:]] == [
        *(f"calibrating {done}/100" for done in range(0, 101, 10)),
        "building 0/1",
    ]


@pytest.mark.parametrize(("installed", "columns"), [(True, 100), (False, 100), (True, 0)])
def test_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *, installed: bool) -> None:
    """A bar, or lines where tqdm is not installed or the terminal has no columns, as some containers' have."""
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    lines: list[str] = []
    leader, follower = os.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(leader, "rb", buffering=0) as screen, os.fdopen(follower, "w") as terminal:
        shown = Progress(lines.append, terminal)
        shown.show(Step("load"))
        shown.tick()
        shown.show(Step("calibrate", 0, 8))
        shown.show(Step("calibrate", 4, 8))
        shown.close()
        if not (installed and columns):
            assert len(lines) == 3
            return
        terminal.flush()
        seen = ""
        while "4/8" not in seen:
            seen += screen.read(1 << 16).decode()
    assert not lines
    assert "loading and converting the checkpoint: [00:00]" in seen
    assert "calibrating: 4/8 |" in seen
