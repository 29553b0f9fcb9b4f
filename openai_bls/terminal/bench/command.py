"""Load test of a server: with aiperf, or with the load generator here."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from argparse import Namespace
from collections import Counter
from pathlib import Path

from rich.console import Console as RichConsole

from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.bench import aiperf, summary
from openai_bls.terminal.bench.load import Level, Load
from openai_bls.terminal.bench.prompts import Prompts
from openai_bls.terminal.connection import Connection, choose_model, connection

_ROUNDS = 4
"""Requests for each one at a time, where their number is not given."""
_LEAST_REQUESTS = 16
_RATE_SECONDS = 10
"""Seconds of arrivals, where the number of requests is not given."""
_MOST_ERRORS = 5
"""Sentences that are printed."""
_TABLE_WIDTH = 100
"""Columns of the table where there is no terminal to ask."""


def run(options: Namespace) -> int:
    """Measure and print; 1 if a request has failed.

    Raises:
        LaunchError: the server cannot be asked, or an option is wrong.
    """
    _check_files(options)
    server = connection(options)
    model = choose_model(server, options.model)
    limits = summary.Limits(options.goodput_ttft, options.goodput_itl)
    loads = levels(options)
    path = _aiperf(options)
    if path is not None:
        return aiperf.run(path, server, model, loads, options, limits)
    return _measure(server, model, loads, options, limits)


def levels(options: Namespace) -> list[Level]:
    """The loads of a command line, in the order in which they were given."""
    if options.rate:
        return [
            Level(options.requests or max(_LEAST_REQUESTS, round(rate * _RATE_SECONDS)), rate=rate)
            for rate in options.rate
        ]
    return [
        Level(options.requests or max(_LEAST_REQUESTS, _ROUNDS * number), concurrency=number)
        for number in options.concurrency
    ]


def _aiperf(options: Namespace) -> str | None:
    """Path of aiperf, if it is to be run."""
    path = None if options.tool == "own" else aiperf.program()
    writes = options.output is not None or options.plot is not None
    if options.tool == "aiperf":
        if path is None:
            raise LaunchError("aiperf is not installed: `pip install aiperf`, or leave out --tool aiperf")
        if writes:
            raise LaunchError("--output and --plot are of the load generator here: aiperf writes files of its own")
        if options.client_certfile is not None:
            raise LaunchError("aiperf has no option for a client certificate: leave out --tool aiperf")
        return path
    if path is not None and (writes or options.client_certfile is not None or not options.tokenizer):
        why = "--output and --plot are not for it" if writes else "it needs a --tokenizer"
        if options.client_certfile is not None:
            why = "it has no option for a client certificate"
        Console().line(f"aiperf is installed and not used: {why}")
        return None
    return path


def _measure(server: Connection, model: str, loads: list[Level], options: Namespace, limits: summary.Limits) -> int:
    console = Console()
    prompts = Prompts(options.prompt_tokens, options.seed)
    prompts.fit(server, model)
    body = {"model": model, "max_tokens": options.output_tokens, "ignore_eos": True}
    if not options.ignore_eos:
        del body["ignore_eos"]
    load = Load(server, body, prompts.next, options.seed)
    console.line(f"{model} at {server.url}: prompts of {prompts.words} random words, {options.output_tokens} tokens")
    if options.warm_up:
        warm = asyncio.run(load.run(Level(options.warm_up, concurrency=min(options.warm_up, 8))))
        if all(sample.error for sample in warm.samples):
            raise LaunchError(warm.samples[0].error)
    found = []
    for level in loads:
        how = f"{level.rate:g} requests/s" if level.rate else f"{level.concurrency} at a time"
        console.step(f"{how}: {level.requests} requests")
        found.append(summary.summarize(asyncio.run(load.run(level)), limits))
    terminal = RichConsole(highlight=False)
    if not terminal.is_terminal:
        terminal = RichConsole(highlight=False, width=_TABLE_WIDTH)
    terminal.print(summary.table(found, limits))
    lengths = [f"{one.prompt_tokens:.0f} → {one.output_tokens:.0f}" for one in found if one.prompt_tokens]
    if lengths:
        console.line(f"tokens of prompt → answer, mean of each load: {', '.join(lengths)}")
    errors: Counter[str] = Counter()
    for one in found:
        errors.update(one.errors)
    for sentence, times in errors.most_common(_MOST_ERRORS):
        console.line(f"failed, {times} times: {sentence}")
    _write(found, server, model, options, limits)
    return 1 if any(one.failed for one in found) else 0


def _write(
    found: list[summary.Summary], server: Connection, model: str, options: Namespace, limits: summary.Limits
) -> None:
    about = {
        "url": server.url,
        "model": model,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "goodput_limits": limits._asdict(),
    }
    try:
        if options.output is not None:
            text = json.dumps(summary.document(found, about), indent=2, ensure_ascii=False)
            options.output.write_text(text + "\n", encoding="utf-8")
        if options.plot is not None:
            title = f"{model}: prompts of {options.prompt_tokens} tokens, answers of {options.output_tokens}"
            summary.plot(found, options.plot, title)
    except OSError as error:
        raise LaunchError(f"{error.filename} cannot be written: {error.strerror}") from None


def _check_files(options: Namespace) -> None:
    """Check that results can be written, before the minutes that they take.

    Raises:
        LaunchError: they cannot.
    """
    for path in (options.output, options.plot):
        folder = Path() if path is None else path.parent
        if not folder.is_dir():
            raise LaunchError(f"{path} cannot be written: there is no folder {folder}")
    if options.plot is not None:
        if options.plot.suffix not in summary.PLOT_SUFFIXES:
            raise LaunchError(f"{options.plot} must end in {' or '.join(summary.PLOT_SUFFIXES)}")
        if importlib.util.find_spec("matplotlib") is None:
            raise LaunchError("--plot needs matplotlib: run `pip install 'openai_bls[bench]'`")
