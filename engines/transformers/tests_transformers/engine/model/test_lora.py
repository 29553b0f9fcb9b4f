"""Adapters in the embedded engine: equal to peft, alone and in one batch with others, loaded and unloaded between."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openai_bls.core.engine import Engine, LoraError
from openai_bls.core.engine_types import TokenDelta
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.model.lora_layers import LoraLayers
from tests.engine_contract.fixtures import EngineFactory
from tests.engine_contract.support import PATIENCE_S, Recorder, request, run_all
from tests.prompt_logprobs import unpacked
from tests_transformers.engine.adapters import EVERYTHING, QUERIES, Reference, load_model, make_adapter, with_adapters
from tests_transformers.engine.overlapping import overlap

TOKENS = 10
PROMPTS = [[5, 6, 7], [9] * 40, list(range(20, 90)), [11, 300, 12]]
CLOSE = 2e-4
NAMES = (None, "queries", "everything")

Start = Callable[..., tuple[Engine, Recorder]]


@pytest.fixture(scope="module")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        "queries": make_adapter(checkpoint, root / "queries", **QUERIES),
        "everything": make_adapter(checkpoint, root / "everything", seed=2, **EVERYTHING),
    }


@pytest.fixture(scope="module")
def reference(checkpoint: Path, folders: dict[str, Path]) -> Reference:
    return Reference(checkpoint, folders)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> dict[tuple[str | None, int], tuple[list[int], list[float]]]:
    """Greedy tokens and log-probabilities by adapter and number of the prompt."""
    return {(name, i): reference.greedy(name, prompt, TOKENS) for name in NAMES for i, prompt in enumerate(PROMPTS)}


@pytest.fixture
def start(start: EngineFactory, version_dir: Path, tmp_path: Path) -> Start:
    """Start an engine with adapters built in."""
    numbers = itertools.count()

    def start_one(adapters: dict[str, Path], overrides: dict[str, str] | None = None, **settings: Any) -> Any:
        settings = {"max_loras": 2, "max_lora_rank": 8} | settings
        folder = with_adapters(version_dir, tmp_path / f"engine-{next(numbers)}", adapters, **settings)
        return start(folder, **(overrides or {}))

    return start_one


@pytest.mark.parametrize("runner", ["continuous_batching", "as on a GPU", "dynamic_cache"])
def test_equal_to_peft_in_one_batch(
    start: Start, folders: dict[str, Path], expected: dict[Any, Any], runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runner == "as on a GPU":
        overlap(monkeypatch)
        # A captured graph runs all of its operations, whatever a step holds.
        monkeypatch.setattr(LoraLayers, "_always", property(lambda self: True, lambda self, value: None), raising=False)
        runner = "continuous_batching"
    engine, recorder = start(folders, {"runner": runner, "max_num_tokens": "64"})
    assert engine.info.lora_names == ("queries", "everything")
    places = list(expected)
    requests = [
        request(n, PROMPTS[i], max_tokens=TOKENS, logprobs=0, lora_name=name) for n, (name, i) in enumerate(places)
    ]
    tokens = run_all(engine, recorder, requests)
    for n, place in enumerate(places):
        assert tokens[n] == expected[place][0], place
        assert recorder.logprobs(n).token_logprobs == pytest.approx(expected[place][1], abs=CLOSE)
    assert len({tuple(expected[name, 2][0]) for name in NAMES}) == 3
    # Each by itself, with whatever is in the prefix cache by now.
    for n, (name, i) in enumerate(places, 100):
        (alone,) = run_all(engine, recorder, [request(n, PROMPTS[i], max_tokens=TOKENS, lora_name=name)])
        assert alone == expected[name, i][0], (name, i)


def test_prompts_are_shared_under_one_adapter_alone(
    start: Start, folders: dict[str, Path], expected: dict[Any, Any]
) -> None:
    engine, recorder = start(folders)
    found = []
    for n, name in enumerate(("queries", None, "everything", "queries", None)):
        (tokens,) = run_all(engine, recorder, [request(n, PROMPTS[2], max_tokens=TOKENS, lora_name=name)])
        assert tokens == expected[name, 2][0]
        found.append(recorder.deltas(n)[0].cached_tokens)
    assert found == [0, 0, 0, 64, 64]
    # The same name is another adapter afterwards.
    engine.unload_lora("queries")
    engine.load_lora("queries", str(folders["everything"]))
    (tokens,) = run_all(engine, recorder, [request(10, PROMPTS[2], max_tokens=TOKENS, lora_name="queries")])
    assert tokens == expected["everything", 2][0]
    assert recorder.deltas(10)[0].cached_tokens == 0


def test_prompt_logprobs_and_embeddings(start: Start, folders: dict[str, Path], reference: Reference) -> None:
    engine, recorder = start(folders)
    prompt = PROMPTS[3]
    for n, name in enumerate(("everything", None)):
        run_all(engine, recorder, [request(n, prompt, max_tokens=1, prompt_logprobs=0, lora_name=name)])
        found = unpacked(recorder.deltas(n)[0].prompt_logprobs)
        rows = reference.logprobs(name, prompt)[:-1]
        wanted = rows.gather(-1, torch.tensor(prompt[1:]).unsqueeze(-1)).squeeze(-1).tolist()
        assert found.token_logprobs == pytest.approx(wanted, abs=CLOSE)
        run_all(engine, recorder, [request(n + 50, prompt, max_tokens=0, pooling="last", lora_name=name)])
        assert recorder.ends[n + 50].embedding == pytest.approx(reference.embedding(name, prompt), abs=CLOSE)


def test_embeddings_by_different_adapters_share_a_pass(
    start: Start, folders: dict[str, Path], reference: Reference
) -> None:
    engine, recorder = start(folders)
    names = ["everything", None, "queries", None, "everything"]
    asked = [(n, name, prompt) for n, (name, prompt) in enumerate(zip(names, PROMPTS, strict=False))]
    run_all(
        engine,
        recorder,
        [request(n, prompt, max_tokens=0, pooling="mean", lora_name=name) for n, name, prompt in asked],
    )
    together = [recorder.ends[n].embedding for n, _, _ in asked]
    for n, name, prompt in asked:
        run_all(engine, recorder, [request(n + 50, prompt, max_tokens=0, pooling="mean", lora_name=name)])
        assert recorder.ends[n + 50].embedding == pytest.approx(together[n], abs=CLOSE)


def test_loading_and_unloading(start: Start, folders: dict[str, Path], expected: dict[Any, Any]) -> None:
    engine, recorder = start({}, max_loras=1)
    assert (engine.info.lora_names, engine.info.max_loras, engine.info.max_lora_rank) == ((), 1, 8)
    engine.load_lora("one", str(folders["queries"]))
    assert engine.info.lora_names == ("one",)
    with pytest.raises(LoraError, match="adapter one "):
        engine.load_lora("one", str(folders["queries"]))
    with pytest.raises(LoraError, match=r" 1 adapters .*--max-loras.* one "):
        engine.load_lora("two", str(folders["everything"]))
    goes_on = threading.Event()

    def wait(deltas: Sequence[TokenDelta]) -> None:
        goes_on.wait(PATIENCE_S)

    # What runs finishes, and keeps its slot until then.
    recorder.after = wait
    engine.submit(request(1, PROMPTS[1], max_tokens=TOKENS, lora_name="one"))
    recorder.wait_tokens(1)
    engine.unload_lora("one")
    with pytest.raises(LoraError, match="slot"):
        engine.load_lora("two", str(folders["everything"]))
    engine.submit(request(2, lora_name="one"))
    goes_on.set()
    recorder.wait_end(1, 2)
    assert recorder.ends[2].invalid
    assert recorder.tokens[1] == expected["queries", 1][0]
    engine.load_lora("two", str(folders["everything"]))
    (tokens,) = run_all(engine, recorder, [request(3, PROMPTS[1], max_tokens=TOKENS, lora_name="two")])
    assert tokens == expected["everything", 1][0]
    with pytest.raises(LoraError, match=r" one$"):
        engine.unload_lora("one")
    for name, said in (("a b", "'a b'"), ("tiny-qwen", "tiny-qwen .*model")):
        with pytest.raises(LoraError, match=said):
            engine.load_lora(name, str(folders["queries"]))


def changed(folder: Path, target: Path, config: dict[str, Any], rename: tuple[str, str] = ("", "")) -> Path:
    target.mkdir()
    found = json.loads((folder / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(found | config))
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({k.replace(*rename): v for k, v in weights.items()}, target / "adapter_model.safetensors")
    return target


BAD: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "dora": ({"use_dora": True}, ("", ""), "use_dora in adapter_config.json"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, ("", ""), "modules_to_save in adapter_config.json"),
    "bias": ({"bias": "all"}, ("", ""), "bias in adapter_config.json .*'all'"),
    "another type": ({"peft_type": "IA3"}, ("", ""), "IA3.*LORA"),
    "pissa": ({"init_lora_weights": "pissa"}, ("", ""), "init_lora_weights in adapter_config.json"),
    "no number": ({"lora_alpha": "much"}, ("", ""), "lora_alpha or alpha_pattern"),
    "another layer": ({}, ("layers.1.", "layers.7."), r"model\.layers\.7\."),
    "half": ({}, ("q_proj.lora_A", "o_proj.lora_A"), r"matrices of .*[qo]_proj"),
    "another rank": ({"r": 4}, ("", ""), r"r in adapter_config.json is 4, .*rank 2"),
    "another rank by a pattern": ({"rank_pattern": {"v_proj": 1}}, ("", ""), r"v_proj .*rank 2"),
    "no rank": ({"r": "2"}, ("", ""), "r in adapter_config.json is '2'"),
    "a pattern that may take long": ({"rank_pattern": {"(q|q)+x": 2}}, ("", ""), "rank_pattern in adapter_config.json"),
    "no pattern": ({"rank_pattern": [2]}, ("", ""), "rank_pattern in adapter_config.json"),
    "an embedding": ({}, ("lora_A.weight", "lora_embedding_A"), "lora_embedding_A"),
}


def test_an_adapter_of_another_base_is_logged(
    start: Start, folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = start({}, max_loras=2)
    engine.load_lora("own", str(folders["queries"]))
    assert "base_model_name_or_path" not in caplog.text
    other = changed(folders["queries"], tmp_path / "other", {"base_model_name_or_path": "org/other"}, ("", ""))
    engine.load_lora("other", str(other))
    assert "the adapter other is of the base model org/other" in caplog.text


def test_bad_adapters(start: Start, folders: dict[str, Path], tmp_path: Path, checkpoint: Path) -> None:
    engine, _ = start({}, max_loras=1, max_lora_rank=4)

    def refusal(folder: Path) -> str:
        with pytest.raises(LoraError) as caught:
            engine.load_lora("bad", str(folder))
        assert str(tmp_path) not in str(caught.value)
        return str(caught.value)

    for number, (config, rename, message) in enumerate(BAD.values()):
        folder = changed(folders["queries"], tmp_path / str(number), config, rename)
        with pytest.raises(LoraError, match=message):
            engine.load_lora("bad", str(folder))
    assert "--max-lora-rank" in refusal(folders["everything"])
    assert "folder nowhere" in refusal(tmp_path / "nowhere")
    (tmp_path / "0" / "adapter_model.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "0" / "adapter_config.json").write_text("{}")
    assert "adapter_model.safetensors cannot be read" in refusal(tmp_path / "0")
    (tmp_path / "0" / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors" in refusal(tmp_path / "0")
    (tmp_path / "0" / "adapter_config.json").unlink()
    assert "no adapter_config.json" in refusal(tmp_path / "0")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / "0" / "adapter_config.json").write_text("{}")
        (tmp_path / "0" / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        assert f"{name} is a git-LFS" in refusal(tmp_path / "0")
    path = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    wide = {path.format("A"): torch.zeros(2, 128), path.format("B"): torch.zeros(64, 2)}
    (tmp_path / "0" / "adapter_config.json").write_text("{}")
    save_file(wide, tmp_path / "0" / "adapter_model.safetensors")
    assert "128 inputs and 64 outputs" in refusal(tmp_path / "0")
    infinite = {path.format("A"): torch.full((2, 64), torch.inf), path.format("B"): torch.zeros(64, 2)}
    save_file(infinite, tmp_path / "0" / "adapter_model.safetensors")
    assert "finite" in refusal(tmp_path / "0")
    # None of that took the slot.
    engine.load_lora("good", str(folders["queries"]))
    with pytest.raises(EngineLoadError, match=r"adapter everything .*--max-lora-rank"):
        start({"everything": folders["everything"]}, max_lora_rank=4)


def test_an_engine_without_room(version_dir: Path) -> None:
    recorder = Recorder()
    engine = create_engine(version_dir, recorder, {"num_threads": "1"})
    assert "lora_name" not in engine.info.supported
    with pytest.raises(LoraError, match="--max-loras"):
        engine.load_lora("one", "anywhere")
    engine.close()


def test_a_step_leaves_nothing_to_a_plain_pass(checkpoint: Path) -> None:
    """On a GPU each step has its tokens' slots, one without adapters too."""
    model, plain = load_model(checkpoint), load_model(checkpoint)
    layers = LoraLayers(model, max_loras=2, max_rank=8)
    layers._always = True
    with torch.no_grad():
        step = torch.arange(10, 17).unsqueeze(0)
        model(input_ids=step, logits_processor_args=torch.zeros(3, 7, dtype=torch.int32))
        longer = torch.arange(10, 40).unsqueeze(0)
        assert torch.equal(model(input_ids=longer).logits, plain(input_ids=longer).logits)
