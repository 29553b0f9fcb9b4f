"""NVIDIA's aiperf: its command lines for the loads that were asked for, run one after the other."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Sequence

from openai_bls.launcher.console import Console
from openai_bls.terminal.bench.load import Level
from openai_bls.terminal.bench.summary import Limits
from openai_bls.terminal.connection import Connection


def program() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("aiperf")


def command(path: str, server: Connection, model: str, level: Level, options: Namespace, limits: Limits) -> list[str]:
    """The command line for one load."""
    words = [path, "profile", "--model", model, "--url", server.url.removesuffix("/v1"), "--endpoint-type", "chat"]
    words += ["--streaming", "--tokenizer", options.tokenizer or model, "--random-seed", str(options.seed)]
    # A tokenizer alone does not see what the chat template adds.
    words += ["--use-server-token-count"]
    if level.rate:
        words += ["--request-rate", f"{level.rate:g}", "--arrival-pattern", "poisson"]
    else:
        words += ["--concurrency", str(level.concurrency)]
    words += ["--request-count", str(level.requests)]
    if options.warm_up:
        words += ["--warmup-request-count", str(options.warm_up)]
    words += ["--synthetic-input-tokens-mean", str(options.prompt_tokens), "--synthetic-input-tokens-stddev", "0"]
    words += ["--output-tokens-mean", str(options.output_tokens), "--output-tokens-stddev", "0"]
    if options.ignore_eos:
        words += ["--extra-inputs", "ignore_eos:true"]
    words += ["--goodput", f"time_to_first_token:{limits.ttft_ms:g} inter_token_latency:{limits.itl_ms:g}"]
    return words


def run(path: str, server: Connection, model: str, levels: Sequence[Level], options: Namespace, limits: Limits) -> int:
    """Print each command and run it; returns the first exit status that is not 0."""
    for level in levels:
        words = command(path, server, model, level, options, limits)
        # The key is left out of what is printed.
        Console().line(shlex.join(words))
        key = ["--api-key", server.api_key] if server.api_key else []
        status = subprocess.run([*words, *key], check=False).returncode
        if status:
            return status
    return 0
