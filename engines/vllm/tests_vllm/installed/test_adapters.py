"""LoRA adapters at run time, held against peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError
from tests.paths import DEMO
from tests_transformers.engine.adapters import Reference, make_adapter
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import Served

SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {"r": 3, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"]},
    "everything": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "use_rslora": True},
    "mlp": {"r": 4, "lora_alpha": 8, "target_modules": ["gate_proj", "up_proj", "down_proj"]},
}
COUNT = 10


@pytest.mark.timeout(1800)
def test_adapters_of_a_batch_are_each_its_own(vllm: Served, tmp_path: Path) -> None:
    folders = {name: make_adapter(DEMO, tmp_path / name, std=0.05, **given) for name, given in SETTINGS.items()}
    reference = Reference(DEMO, folders)
    wanted = {
        name: [reference.greedy(name, cases.prompt(i, 10), COUNT) for i in range(3)] for name in (None, *SETTINGS)
    }
    assert len({str(tokens) for tokens in wanted.values()}) == 4

    def check(*names: str | None) -> None:
        """Requests with these adapters (None is the model's own) in one batch."""
        asked = [
            cases.asked(cases.prompt(i, 10), COUNT, lora_name=name, logprobs=0) for name in names for i in range(3)
        ]
        answers = iter(vllm.ask(asked))
        for name in names:
            for tokens, logprobs in wanted[name]:
                answer = next(answers)
                assert answer.error is None
                assert answer.tokens == tokens, name
                assert answer.logprobs.token_logprobs == pytest.approx(logprobs, abs=1e-3), name

    engine = vllm.engine
    engine.load_lora("attention", str(folders["attention"]))
    engine.load_lora("everything", str(folders["everything"]))
    try:
        check("attention", "everything", None)
        with pytest.raises(LoraError, match=r" 2 adapters .*--max-loras"):
            engine.load_lora("mlp", str(folders["mlp"]))
        engine.unload_lora("attention")
        engine.load_lora("mlp", str(folders["mlp"]))
        check(None, "mlp", "everything", None)
        (late,) = vllm.ask([cases.asked(cases.prompt(0), lora_name="attention")])
        assert "lora_name" in (late.error or "")
    finally:
        for name in engine.info.lora_names:
            engine.unload_lora(name)
    check(None)


def test_bad_adapters_are_refused_and_harm_nothing(vllm: Served, tmp_path: Path) -> None:
    too_large = make_adapter(DEMO, tmp_path / "large", r=16, target_modules=["q_proj"])
    for folder, said in (
        (tmp_path / "none", "none"),
        (tmp_path, "adapter_config.json"),
        (too_large, "--max-lora-rank"),
    ):
        with pytest.raises(LoraError, match=said):
            vllm.engine.load_lora("bad", str(folder))
    assert vllm.engine.info.lora_names == ()
    (answer,) = vllm.ask([cases.asked(cases.prompt(0), 4)])
    assert answer.reason == "length"
