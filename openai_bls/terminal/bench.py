"""Load test of a server by NVIDIA's aiperf: one run of it for each load that was asked for."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from argparse import Namespace
from pathlib import Path
from urllib.parse import urlsplit

from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.connection import choose_model, connection

_ROUNDS = 4
"""Requests for each one at a time, where their number is not given."""
_LEAST_REQUESTS = 16
_RATE_SECONDS = 10
"""Seconds of arrivals, where the number of requests is not given."""
_KEY_VARIABLE = "OPENAI_BLS_BENCH_KEY"
_KEY_CONFIG = f"""\
benchmark:
  endpoint: {{api_key: "${{{_KEY_VARIABLE}}}"}}
  dataset: {{type: synthetic}}
  phases: {{type: concurrency, requests: 1}}
"""
"""aiperf's configuration with a key: by its option other users of the machine would see it. The rest is required there,
and replaced by the command line."""


def run(options: Namespace) -> int:
    """Print each of aiperf's command lines and run it; returns the first exit status that is not 0.

    Raises:
        LaunchError: aiperf is not installed, or the server cannot be asked.
    """
    program = shutil.which("aiperf")
    if program is None:
        raise LaunchError("bench runs NVIDIA's aiperf, which is not on PATH: run `pipx install aiperf`")
    server = connection(options)
    model = choose_model(server, options.model)
    environment = {**os.environ, _KEY_VARIABLE: server.api_key}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "key.yaml"
        config.write_text(_KEY_CONFIG, encoding="utf-8")
        key = ["--config", str(config)] if server.api_key else []
        for load in _loads(options):
            command = [program, "profile", *_server(server.url, model), *load, *_requests(options), *options.extra]
            Console().line(shlex.join(command))
            status = subprocess.run([*command, *key], check=False, env=environment).returncode
            if status:
                return status
    return 0


def _server(url: str, model: str) -> list[str]:
    parts = urlsplit(url)
    return [
        *("--model", model),
        *("--url", f"{parts.scheme}://{parts.netloc}"),
        *("--custom-endpoint", f"{parts.path}/chat/completions"),
        *("--endpoint-type", "chat"),
        "--streaming",
        # A tokenizer alone does not see what the chat template adds.
        "--use-server-token-count",
    ]


def _loads(options: Namespace) -> list[list[str]]:
    """Options of each load, in the order in which the loads were given."""
    if options.rate:
        return [
            [
                "--request-rate",
                f"{rate:g}",
                "--arrival-pattern",
                "poisson",
                *_count(options, round(rate * _RATE_SECONDS)),
            ]
            for rate in options.rate
        ]
    return [["--concurrency", str(number), *_count(options, _ROUNDS * number)] for number in options.concurrency]


def _count(options: Namespace, default: int) -> list[str]:
    """Number of requests, each with a prompt that no other has, so that a prefix cache finds nothing."""
    requests = options.requests or max(_LEAST_REQUESTS, default)
    return ["--request-count", str(requests), "--num-dataset-entries", str(requests + options.warm_up)]


def _requests(options: Namespace) -> list[str]:
    return [
        *("--tokenizer", options.tokenizer),
        *("--synthetic-input-tokens-mean", str(options.prompt_tokens)),
        *("--synthetic-input-tokens-stddev", "0"),
        *("--output-tokens-mean", str(options.output_tokens)),
        *("--output-tokens-stddev", "0"),
        *(("--extra-inputs", "ignore_eos:true") if options.ignore_eos else ()),
        *(("--warmup-request-count", str(options.warm_up)) if options.warm_up else ()),
        *("--random-seed", str(options.seed)),
        *("--request-timeout-seconds", f"{options.timeout:g}"),
        *("--goodput", f"time_to_first_token:{options.goodput_ttft:g} inter_token_latency:{options.goodput_itl:g}"),
    ]
