"""Progress of a build: steps read from the worker's log, shown as a bar on a terminal and as lines elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import msgspec

from openai_bls_tensorrt_llm.recipe.worker.main import STAGE

STAGES = {
    "import": "starting TensorRT-LLM",
    "download": "downloading",
    "load": "loading and converting the checkpoint",
    "calibrate": "calibrating",
    "build": "building",
    "save": "saving the engine",
    "hash": "hashing the engine",
}
"""Name of a stage → its description, in the order of a build."""


class Step(msgspec.Struct, frozen=True):
    """Stage of a build, and how far it is."""

    stage: str
    done: int = 0
    total: int = 0
    """0 if the stage does not count anything."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# TensorRT-LLM's own progress: `Loading Model: [2/3]  Loading HF model to memory`.
_PIPELINE = (("Downloading HF model", "download"), ("Loading HF model", "load"), ("Building TRT-LLM engine", "build"))
# tqdm: `Loading checkpoint shards:  25%|██▌       | 1/4 [00:14<00:44, 14.79s/it]`.
_BAR = re.compile(r"^(?P<what>[^|%]*?):?\s*\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\b")
_BATCH = re.compile(r"Calibrating batch (\d+)", re.IGNORECASE)
_CALIBRATION = ("Loading calibration dataset", "quantizers", "calibrat")
_RANK_DONE = re.compile(r"Total time of building (?!all)")
_SAVING = ("Engine serialized", "Serializing engine to")


class LogReader:
    """Reads steps from log lines of TensorRT-LLM 0.16 to 1.2, ModelOpt and tqdm."""

    def __init__(self, ranks: int, calibration_size: int) -> None:
        self._ranks = ranks
        self._calibration_size = calibration_size
        self._built = 0

    def read(self, line: str) -> Step | None:
        """Step that a line reports, if any."""
        text = _COLOUR.sub("", line).strip()
        if text.startswith(STAGE):
            return self._stage(text.removeprefix(STAGE))
        for words, stage in _PIPELINE:
            if words in text and "[" in text:
                return self._stage(stage)
        if _RANK_DONE.search(text):
            self._built = min(self._built + 1, self._ranks)
            return self._stage("build")
        if any(words in text for words in _SAVING):
            return Step("save")
        # What is counted later on is the loading of the engine.
        return None if self._built else self._counted(text)

    def _stage(self, name: str) -> Step | None:
        if name == "build":
            return Step(name, self._built, self._ranks)
        return Step(name) if name in STAGES else None

    def _counted(self, text: str) -> Step | None:
        if bar := _BAR.match(text):
            stage = "calibrate" if "calib" in bar["what"].lower() else "load"
            return Step(stage, int(bar["done"]), int(bar["total"]))
        if batch := _BATCH.search(text):
            return Step("calibrate", int(batch[1]) + 1, self._calibration_size)
        if any(words in text for words in _CALIBRATION):
            return Step("calibrate", 0, self._calibration_size)
        return None


class Progress:
    """Shows steps: on a terminal as a bar, if tqdm is installed, else as a line for each stage and each tenth of it."""

    def __init__(self, report: Callable[[str], None], terminal: TextIO | None = None) -> None:
        self._report = report
        self._start = time.monotonic()
        self._step: Step | None = None
        self._terminal = terminal or sys.stderr
        self._bars: Any = _tqdm_class() if _has_room(self._terminal) else None
        self._bar: Any = None

    def show(self, step: Step) -> None:
        """Show `step`; steps back within a stage are left out."""
        last = self._step
        if last is not None and last.stage == step.stage and last.total == step.total and step.done <= last.done:
            return
        self._step = step
        if self._bars is not None:
            self._show_bar(step, new=last is None or last.stage != step.stage or last.total != step.total)
        elif last is None or last.stage != step.stage or _tenth(last) != _tenth(step):
            minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
            counted = f" {step.done}/{step.total}" if step.total else ""
            self._report(f"[{minutes}:{seconds:02}] {STAGES[step.stage]}{counted}")

    def tick(self) -> None:
        """Let a bar tell the time."""
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show_bar(self, step: Step, *, new: bool) -> None:
        if new:
            self.close()
            counts = "{n_fmt}/{total_fmt} |{bar}| " if step.total else ""
            self._bar = self._bars(
                total=step.total or None,
                desc=STAGES[step.stage],
                bar_format="{desc}: " + counts + "[{elapsed}]",
                file=self._terminal,
                dynamic_ncols=True,
            )
        self._bar.n = step.done
        self._bar.refresh()


def _has_room(output: TextIO) -> bool:
    """True for a terminal with columns: some of a container's have none, and a bar would show nothing."""
    return output.isatty() and os.get_terminal_size(output.fileno()).columns > 0


def _tqdm_class() -> Any:
    """None where tqdm is not installed."""
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None


def _tenth(step: Step) -> int:
    return 10 * step.done // step.total if step.total else 0
