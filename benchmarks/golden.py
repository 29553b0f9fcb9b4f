"""Golden answers of the demo checkpoint by an engine: `python -m benchmarks.golden ENGINE_DIR`, built of the demo."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.support import ROOT
from benchmarks.support.asking import Asker
from benchmarks.support.checkpoint_shapes import DEMO
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.engine_process.loading import load_engine


def golden_lines() -> list[dict[str, Any]]:
    """Prompts and answers of the demo checkpoint."""
    return [msgspec.json.decode(line) for line in (ROOT / "demo" / "golden.jsonl").read_bytes().splitlines()]


def check_golden(engine_dir: Path, options: dict[str, str]) -> dict[str, Any]:
    """How many golden answers an engine gives, one request at a time and all at once."""
    from transformers import AutoTokenizer

    lines = golden_lines()
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    asker = Asker()
    engine = asker.engine = load_engine(engine_dir, asker.on_step, options, EngineSettings()).engine

    def request(line: dict[str, Any]) -> GenerationRequest:
        text = line.get("raw") or tokenizer.apply_chat_template(
            line["messages"], tools=line.get("tools"), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text)["input_ids"]
        return GenerationRequest(
            request_id=0,
            prompt_token_ids=ids,
            max_tokens=min(engine.info.max_model_len - len(ids), line["tokens"] + 32),
            sampling=SamplingParams(temperature=0),
            stop_token_ids=engine.info.eos_token_ids,
        )

    try:
        requests = [request(line) for line in lines]
        found = {"alone": asker.ask(requests, at_once=1), "together": asker.ask(requests)}
    finally:
        engine.close()
    wrong = {
        name: [
            i
            for i, (answer, line) in enumerate(zip(answers, lines, strict=True))
            if tokenizer.decode(answer.tokens, skip_special_tokens=True) != line["answer"]
        ]
        for name, answers in found.items()
    }
    # The smallest gap of logits along each answer that differs: rounding may turn small ones.
    margins = {i: lines[i]["margin"] for numbers in wrong.values() for i in numbers}
    error = next((answer.error for answers in found.values() for answer in answers if answer.error), "")
    counts = {name: len(lines) - len(ids) for name, ids in wrong.items()}
    return {"answers": len(lines), "margins": margins, "error": error} | counts


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if an answer is another one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__)
    parser.add_argument("engine", type=Path, help="folder with engine.json: model_repository/tensorrt_llm/1")
    found = check_golden(parser.parse_args(arguments).engine, {})
    print(json.dumps(found))
    return int(bool(found["error"]) or not found["answers"] == found["alone"] == found["together"])


if __name__ == "__main__":
    sys.exit(main())
