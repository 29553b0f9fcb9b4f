"""Measure the embedded engine on a GPU, unattended: `python -m benchmarks.gpu --out OUT`.

Makes a random checkpoint of a 7B model, builds the engine, drives it directly, serves it with the real tritonserver and
drives /v1 in the same way, checks the demo checkpoint's golden answers with every kind of attention, and compares
further settings of the engine. The order is that of importance. Each stage has a limit of its own and runs in a process
of its own; one that fails or that there is no time for leaves the others' results whole. After every stage
`results.json` and `summary.md` are written anew.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.engine import ROOT, overrides_environment, parse_variant, show_log
from benchmarks.machine import conditions
from benchmarks.options import levels
from benchmarks.random_checkpoint import configuration, tensor_shapes
from benchmarks.report import markdown_table

# Prompts are all different for the engine alone; /v1 repeats some, which must not count for it.
_FAIR = {"prefix_sharing": "false"}
MAIN = "auto"
FURTHER = (
    "unfused:fused_ops=false",
    "sync:async_batching=false",
    "no-graphs:cuda_graphs=false",
    "step-8192:max_num_tokens=8192",
    "varlen:attention=varlen",
    "sdpa:attention=sdpa",
    "eager:attention=eager",
)
GOLDEN = (MAIN, "paged-plain:attention=paged,fused_ops=false,cuda_graphs=false", *FURTHER[4:])
_LEAST_S = 20.0  # with less time left no stage is begun
_STOP_S = 10.0


@dataclass
class Results:
    """What has been measured so far."""

    made: dict[str, Any]
    stages: dict[str, str] = field(default_factory=dict)
    """How each stage ended and how long it took."""
    direct: dict[str, Any] = field(default_factory=dict)
    """Of the engine alone: what `benchmarks.engine --json` writes, by stage."""
    served: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Of /v1: measurements of `benchmarks.load`, by variant."""
    golden: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By variant: how many answers are the same, alone and together."""

    def variants(self) -> list[dict[str, Any]]:
        """All variants that were measured on the engine alone."""
        return [variant for document in self.direct.values() for variant in document["variants"]]

    def direct_rate(self, name: str, level: int) -> float | None:
        """Tokens/s of the engine alone."""
        for variant in self.variants():
            if variant["name"] == name:
                for one in variant["levels"]:
                    if one["concurrency"] == level:
                        return float(one["tokens_per_s"])
        return None


class Session:
    """Runs stages one after another until the time is used up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.work: Path = options.work or room_for(options.like)
        self.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.budget_s
        self.results = Results(asdict(conditions("python -m benchmarks.gpu", _versions())))
        self.log = (self.out / "log.txt").open("ab", buffering=0)

    def left(self) -> float:
        """Seconds until the deadline."""
        return float(self.deadline - time.monotonic())

    def say(self, line: str) -> None:
        """Tell the log and whoever watches."""
        stamped = f"[{self.options.budget_s - self.left():6.1f} s] {line}"
        print(stamped, flush=True)
        self.log.write(f"{stamped}\n".encode())

    def stage(self, name: str, limit_s: float, work: Callable[[float], str]) -> bool:
        """Do `work`, which is told how many seconds it has; whether it came to its end."""
        seconds = min(limit_s, self.left() - 5)
        if seconds < _LEAST_S:
            self.results.stages[name] = "left out: no time"
            self.say(f"{name}: left out, {self.left():.0f} s left")
            self.write()
            return False
        self.say(f"{name}: at most {seconds:.0f} s")
        started = time.monotonic()
        try:
            said, good = work(seconds), True
        except Exception as error:
            self.log.write(traceback.format_exc().encode())
            said, good = f"FAILED: {type(error).__name__}: {str(error)[:300]}", False
        self.results.stages[name] = f"{time.monotonic() - started:.0f} s: {said}"
        self.say(f"{name}: {self.results.stages[name]}")
        self.write()
        return good

    def command(self, arguments: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> int:
        """Run a module of ours in a process group of its own; its output goes to the log. Its exit code."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return 124

    def write(self) -> None:
        """Write what there is."""
        content = asdict(self.results)
        (self.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
        (self.out / "summary.md").write_text(summary(self.results, self.options.concurrency), encoding="utf-8")

    # Stages. Each returns a few words on how it went.

    def prepare(self, seconds: float) -> str:
        """The checkpoint and both engines."""
        from openai_bls.builder.build import build
        from openai_bls.builder.recipe import BuildOptions
        from openai_bls.launcher.testing import copy_models

        source = self.work / self.options.like
        if not (source / "model.safetensors.index.json").is_file():
            code = self.command(
                ["benchmarks.random_checkpoint", "--like", self.options.like, str(source)], seconds - _STOP_S
            )
            if code:
                raise RuntimeError(f"benchmarks.random_checkpoint ended with {code}")
        for name, model, length in (("random", source, self.options.max_model_len), ("demo", _DEMO, None)):
            repository = self.work / f"{name}-repository"
            if not repository.exists():
                copy_models(ROOT / "model_repository", repository)
            build(
                BuildOptions(
                    model=str(model),
                    model_repository=repository,
                    max_model_len=length,
                    max_batch_size=max(self.options.concurrency),
                    served_model_name=self.options.like if name == "random" else "demo",
                ),
                lambda line: self.say(f"build: {line}"),
            )
        linked = any(path.stat().st_nlink > 1 for path in source.glob("*.safetensors"))
        return "weights linked" if linked else "weights copied"

    def direct(self, stage: str, variants: Sequence[str], seconds: float, *, profile: bool = False) -> str:
        """The engine alone, with one or more variants."""
        file = self.work / f"{stage}.json"
        file.unlink(missing_ok=True)
        options = self.options
        code = self.command(
            [
                "benchmarks.engine",
                f"--engine-dir={self.work / 'random-repository' / 'tensorrt_llm' / '1'}",
                f"--concurrency={','.join(map(str, options.concurrency))}",
                f"--prompt-tokens={options.prompt_tokens}",
                f"--output-tokens={options.output_tokens}",
                f"--requests-per-slot={options.requests_per_slot}",
                f"--level-s={options.level_s}",
                f"--budget-s={seconds * 0.7:.0f}",
                f"--json={file}",
                *(f"--variant={_fair(text)}" for text in variants),
                *([f"--profile={self.out}"] if profile else []),
            ],
            seconds - _STOP_S,
        )
        if file.is_file():
            self.results.direct[stage] = msgspec.json.decode(file.read_bytes())
        if code not in (0, 1):
            raise RuntimeError(f"benchmarks.engine ended with {code}")
        rates = []
        for one in self.results.direct[stage]["variants"]:
            measured = " ".join(f"{level['tokens_per_s']:.0f}" for level in one["levels"])
            rates.append(f"{one['name']} {one['error'] or measured}")
        return "; ".join(rates)

    def serve(self, variant: str, seconds: float) -> str:
        """The same engine behind tritonserver and /v1."""
        from openai_bls.launcher.testing import run_server

        chosen = parse_variant(_fair(variant))
        ends = time.monotonic() + seconds - 2 * _STOP_S
        environment = overrides_environment({"max_batch_size": str(max(self.options.concurrency))} | chosen.options)
        log_path = self.work / f"server-{chosen.name}.log"
        done = []
        try:
            with run_server(
                self.work / "random-repository", environment, log_path=log_path, timeout=seconds / 2
            ) as server:
                self.say(f"{chosen.name}: the server is ready")
                for level in self.options.concurrency:
                    left = ends - time.monotonic()
                    if left < _STOP_S:
                        break
                    done.append(f"{level}: {self._load(chosen.name, server.openai_url, level, left):,.0f}")
        finally:
            if log_path.is_file():
                self.log.write(log_path.read_bytes()[-20_000:])
        return "tokens/s at " + ", ".join(done)

    def _load(self, variant: str, url: str, level: int, seconds: float) -> float:
        """Drive /v1 at one level; tokens/s."""
        file = self.work / f"load-{variant}-{level}.json"
        options = self.options
        code = self.command(
            [
                "benchmarks.load",
                f"--url={url}",
                f"--concurrency={level}",
                f"--prompt-tokens={options.prompt_tokens}",
                f"--output-tokens={options.output_tokens}",
                f"--requests={max(4, options.requests_per_slot * level)}",
                "--repeat=1",
                f"--client-processes={min(options.client_processes, level)}",
                f"--json={file}",
            ],
            seconds,
        )
        if not file.is_file():
            raise RuntimeError(f"benchmarks.load at {level} ended with {code}")
        [[one]] = msgspec.json.decode(file.read_bytes())["series"].values()
        self.results.served.setdefault(variant, []).append(one)
        return float(one["tokens_per_s"] or 0)

    def check(self, variant: str, seconds: float) -> str:
        """The golden answers of the demo checkpoint."""
        chosen = parse_variant(variant)
        file = self.work / f"golden-{chosen.name}.json"
        folder = self.work / "demo-repository" / "tensorrt_llm" / "1"
        code = self.command(
            ["benchmarks.gpu", "--golden", variant, f"--engine-dir={folder}", f"--out={file}"], seconds - _STOP_S
        )
        if not file.is_file():
            raise RuntimeError(f"ended with {code}")
        found = self.results.golden[chosen.name] = msgspec.json.decode(file.read_bytes())
        return str(found.get("error") or f"{found['alone']} alone, {found['together']} together, of {found['answers']}")


_DEMO = ROOT / "demo" / "checkpoint"


def room_for(like: str) -> Path:
    """A folder for the checkpoint `like`: in memory where that has the room, else on disk."""
    needed = 1.1 * 2 * sum(math.prod(shape) for _, shape in tensor_shapes(configuration(like)))
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > needed:
            return folder / "openai_bls-bench"
    raise OSError(f"no room for {needed / 1e9:.0f} GB: name a folder with --work")


def _fair(variant: str) -> str:
    """`variant` without prefix sharing."""
    parsed = parse_variant(variant)
    return f"{parsed.name}:{','.join(f'{key}={value}' for key, value in (parsed.options | _FAIR).items())}"


def check_golden(engine_dir: Path, options: dict[str, str]) -> dict[str, Any]:
    """How many golden answers an engine gives, one request at a time and all at once."""
    from transformers import AutoTokenizer

    from openai_bls.core.engine_types import GenerationRequest, SamplingParams, TokenDelta
    from openai_bls.engines.registry import create_engine

    lines = [msgspec.json.decode(line) for line in (ROOT / "demo" / "golden.jsonl").read_bytes().splitlines()]
    tokenizer: Any = AutoTokenizer.from_pretrained(_DEMO)
    tokens: dict[int, list[int]] = {}
    ended: set[int] = set()

    def on_step(deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                ended.add(delta.request_id)

    engine = create_engine(engine_dir, on_step, options)

    def submit(number: int, line: dict[str, Any]) -> None:
        text = line.get("raw") or tokenizer.apply_chat_template(
            line["messages"], tools=line.get("tools"), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text)["input_ids"]
        room = engine.info.max_model_len - len(ids)
        engine.submit(
            GenerationRequest(
                request_id=number,
                prompt_token_ids=ids,
                max_tokens=min(room, line["tokens"] + 32),
                sampling=SamplingParams(temperature=0),
                stop_token_ids=engine.info.eos_token_ids,
            )
        )

    def wait(numbers: set[int]) -> None:
        until = time.monotonic() + 120
        while not numbers <= ended:
            if time.monotonic() > until:
                raise TimeoutError("no end")
            time.sleep(0.002)

    def right(first: int) -> list[int]:
        """The lines whose answers, of the requests from `first` on, are not the golden ones."""
        texts = [str(tokenizer.decode(tokens[first + i], skip_special_tokens=True)) for i in range(len(lines))]
        return [i for i, line in enumerate(lines) if texts[i] != line["answer"]]

    try:
        for i, line in enumerate(lines):
            submit(i, line)
            wait({i})
        for i, line in enumerate(lines, 1000):
            submit(i, line)
        wait({*range(1000, 1000 + len(lines))})
    finally:
        engine.close()
    alone, together = right(0), right(1000)
    return {
        "answers": len(lines),
        "alone": len(lines) - len(alone),
        "together": len(lines) - len(together),
        # The smallest gap of logits along each: rounding may turn small ones.
        "different": [
            {"line": i, "margin": lines[i]["margin"], "alone": i in alone, "together": i in together}
            for i in sorted({*alone, *together})
        ],
    }


def _versions() -> dict[str, str]:
    """What matters on a GPU, asked for in a process of its own, so that this one leaves the GPU alone."""
    code = (
        "import inspect, json, torch\n"
        "found = {'torch': str(torch.__version__), 'CUDA': str(torch.version.cuda)}\n"
        "if torch.cuda.is_available(): found['GPU'] = torch.cuda.get_device_name()\n"
        "try:\n"
        "    import triton; found['triton'] = triton.__version__\n"
        "    from torch.nn.attention.varlen import varlen_attn\n"
        "    found['varlen_attn'] = ' '.join(inspect.signature(varlen_attn).parameters)\n"
        "except ImportError as error: found['missing'] = str(error)\n"
        "print(json.dumps(found))\n"
    )
    try:
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
        found: dict[str, str] = msgspec.json.decode(answer.stdout.splitlines()[-1])
        return found
    except (subprocess.SubprocessError, msgspec.DecodeError, IndexError) as error:
        return {"torch": f"unknown: {error}"}


def summary(results: Results, levels: Sequence[int]) -> str:
    """The results as Markdown."""
    made = results.made
    parts = [
        "# The embedded engine on a GPU",
        f"{made['date']}, {made['cores']} cores ({made['cpu_model']}). "
        + ", ".join(f"{name} {version}" for name, version in made["versions"].items()),
    ]
    if results.served:
        parts += ["## /v1 against the engine alone", _served_table(results)]
    for document in list(results.direct.values())[:1]:
        floor = document["floor"]
        if floor["bytes_per_s"]:
            parts.append(
                f"Floor at one sequence: {floor['step_bytes'] / 1e9:.2f} GB of weights a step "
                f"(of {floor['weight_bytes'] / 1e9:.2f}) at {floor['bytes_per_s'] / 1e12:.2f} TB/s of a copy: "
                f"{floor['token_ms']:.2f} ms a token."
            )
    if results.direct:
        parts += ["## The engine alone, tokens/s", _direct_table(results, levels)]
    if results.golden:
        body = [
            [name, str(one.get("alone", "")), str(one.get("together", "")), str(one.get("answers", one.get("error")))]
            for name, one in results.golden.items()
        ]
        parts += ["## Golden answers", markdown_table(["variant", "alone", "together", "of"], body)]
    stages = [[name, said.replace("|", "/")] for name, said in results.stages.items()]
    parts += ["## Stages", markdown_table(["stage", "took"], stages)]
    return "\n\n".join(parts) + "\n"


def _number(value: float | None, digits: int = 0) -> str:
    return "n/a" if value is None else f"{value:,.{digits}f}"


def _served_table(results: Results) -> str:
    headers = ["variant", "conc.", "failed", "prompt", "TTFT p50", "ITL p50", "ITL p99", "tokens/s", "engine", "ratio"]
    body = []
    for name, measurements in results.served.items():
        for one in measurements:
            rate = one.get("tokens_per_s")
            alone = results.direct_rate(name, one["concurrency"])
            body.append(
                [
                    name,
                    str(one["concurrency"]),
                    str(one.get("failed")),
                    _number(one.get("prompt_tokens")),
                    _number(one.get("first_token_ms_p50"), 1),
                    _number(one.get("gap_ms_p50"), 2),
                    _number(one.get("gap_ms_p99"), 2),
                    _number(rate),
                    _number(alone),
                    f"{rate / alone:.1%}" if rate and alone else "n/a",
                ]
            )
    return markdown_table(headers, body)


def _direct_table(results: Results, levels: Sequence[int]) -> str:
    body = []
    for variant in results.variants():
        by_level = {one["concurrency"]: one for one in variant["levels"]}
        one = by_level.get(min(levels), {})
        share = variant.get("floor_share")
        body.append(
            [
                variant["name"],
                *(_number(by_level.get(level, {}).get("tokens_per_s")) for level in levels),
                _number(one.get("first_token_p50"), 1),
                _number(one.get("gap_p50"), 2),
                f"{share:.0%}" if share else "n/a",
                variant["error"],
            ]
        )
    headers = ["variant", *(f"at {level}" for level in levels), "TTFT at 1", "ITL at 1", "of floor", "error"]
    return markdown_table(headers, body)


def best(results: Results, levels: Sequence[int]) -> str:
    """The name of the variant that is fastest over all levels, each counted alike."""

    def score(variant: dict[str, Any]) -> float:
        product = 1.0
        for level in levels:
            product *= results.direct_rate(variant["name"], level) or 1e-9
        return product

    return str(max(results.variants(), key=score)["name"])


def run(session: Session) -> None:
    """All stages, the most important first."""
    options = session.options
    if not session.stage("prepare", 150, session.prepare):
        return
    session.stage("direct", 150, lambda s: session.direct("direct", [MAIN], s, profile=True))
    session.stage("serve", 150, lambda s: session.serve(MAIN, s))
    session.stage(f"golden {MAIN}", 60, lambda s: session.check(MAIN, s))
    variants = options.variant or list(FURTHER)
    session.stage("variants", 240, lambda s: session.direct("variants", variants, s))
    if session.results.variants():
        winner = best(session.results, options.concurrency)
        text = next((text for text in variants if parse_variant(text).name == winner), None)
        if text is not None:
            session.stage(f"serve {winner}", 150, functools.partial(session.serve, text))
    for text in GOLDEN[1:]:
        session.stage(f"golden {parse_variant(text).name}", 60, functools.partial(session.check, text))


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a stage failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--work", type=Path, help="folder for checkpoints (default: in /dev/shm, if it has the room)")
    parser.add_argument("--like", default="qwen2.5-7b", help="shape of the checkpoint (default %(default)s)")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="default %(default)s")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="default %(default)s")
    parser.add_argument("--output-tokens", type=int, default=128, help="default %(default)s")
    parser.add_argument("--requests-per-slot", type=int, default=3, help="default %(default)s")
    parser.add_argument("--max-model-len", type=int, default=2048, help="default %(default)s")
    parser.add_argument("--level-s", type=float, default=20.0, help="most seconds for a level (default %(default)s)")
    parser.add_argument("--client-processes", type=int, default=4, help="default %(default)s")
    parser.add_argument("--budget-s", type=float, default=560.0, help="for everything (default %(default)s)")
    parser.add_argument("--variant", action="append", help="to compare, as benchmarks.engine takes them")
    parser.add_argument("--golden", help=argparse.SUPPRESS)
    parser.add_argument("--engine-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.golden is not None:
        return _golden_main(options)
    session = Session(options)
    run(session)
    print(summary(session.results, options.concurrency))
    return int(any("FAILED" in said for said in session.results.stages.values()))


def _golden_main(options: argparse.Namespace) -> int:
    chosen = parse_variant(options.golden)
    show_log()
    try:
        found = check_golden(options.engine_dir, chosen.options)
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    options.out.write_bytes(msgspec.json.encode(found))
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main())
