"""Speculative decoding: how each drafter samples in each version, and what requests may ask for beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import LoraAdapter, Version
from openai_bls_tensorrt_llm.installed.llm_args import read
from openai_bls_tensorrt_llm.installed.speculation import notes, refusals, speculation
from openai_bls_tensorrt_llm.loading import load
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.engine_contract.support import Recorder
from tests_tensorrt_llm.engine.fake_engines import write_fake_engine
from tests_tensorrt_llm.engine.fake_support import in_process, small_checkpoint
from tests_tensorrt_llm.engine.scripted_api import request
from tests_tensorrt_llm.installed.test_llm_args import NGRAM, draft_model
from tests_tensorrt_llm.installed.world import END, PLAIN, World, ask, asking


@pytest.mark.parametrize(
    ("version", "config", "one_engine", "greedy", "guided"),
    [
        ("1.0", NGRAM, False, True, False),
        ("1.1", NGRAM, False, True, True),
        ("1.2", NGRAM, False, False, True),
        ("1.3", NGRAM, False, False, True),
        ("1.1", {"decoding_type": "MTP"}, True, True, False),
        ("1.2", {"decoding_type": "MTP"}, True, True, True),
        ("1.2", {"decoding_type": "MTP", "allow_advanced_sampling": True}, True, False, True),
        ("1.2", {"decoding_type": "Eagle", "max_draft_len": 2}, True, True, True),
        ("1.2", {"decoding_type": "Eagle", "max_draft_len": 2, "eagle3_one_model": False}, False, False, True),
        ("1.3", {"decoding_type": "Eagle3", "max_draft_len": 2}, True, True, True),
        ("1.4", {"decoding_type": "Eagle3", "max_draft_len": 2}, True, False, True),
        ("1.4", {"decoding_type": "MTP"}, True, False, True),
        ("1.2", {"decoding_type": "DraftTarget", "max_draft_len": 2}, False, False, True),
        ("1.3", {"decoding_type": "DraftTarget", "max_draft_len": 2}, True, True, True),
    ],
)
def test_drafters(
    version: str, config: dict[str, Any], tmp_path: Path, *, one_engine: bool, greedy: bool, guided: bool
) -> None:
    number = Version.parse(version)
    needs_model = config["decoding_type"] not in ("NGram", "MTP")
    config = config | ({"speculative_model": draft_model(tmp_path)} if needs_model else {})
    values = read({"speculative_config": config}, number)
    found = speculation(values, number)
    assert found is not None
    assert (found.one_engine, found.greedy, found.guided) == (one_engine, greedy, guided)
    assert found.draft_model == (Path(draft_model(tmp_path)) if needs_model else None)
    told = list(notes(values, number))
    assert len(told) == 1 + greedy + needs_model
    assert ("allow_advanced_sampling: true" in told[-1]) == (greedy and version >= "1.2")
    assert list(refusals(values, number)) == []
    assert len(list(refusals(values, number, grammars="xgrammar"))) == (not guided)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1", "1.3.0rc21"])
def test_a_model_with_a_drafter(version: str, world: World) -> None:
    """`LLM` gets the drafter and no sampler that cannot verify it; requests what is known to be honoured."""
    given = {"speculative_config": NGRAM, "kv_cache_config": {"enable_partial_reuse": False}, "print_iter_log": True}
    with world.api(version) as installed:
        options = world.options(installed, "pytorch", extra_llm_api_options=read(given, installed.version))
        assert installed.supported(options) == ("stop_token_ids", "temperature", "top_k", "top_p")
        llm = installed.open(options)
        try:
            found = ask(installed, llm, PLAIN)
            assert (list(found.token_ids), found.finish_reason) == ([5, 6, 7, END], "stop")
            if version < "1.2":
                with pytest.raises(ValueError, match=r"^temperature: 0 .*\(NGram\)$"):
                    ask(installed, llm, asking(temperature=1.0))
                ask(installed, llm, asking(temperature=1.0, top_k=1))
            else:
                ask(installed, llm, asking(temperature=1.0))
        finally:
            llm.shutdown()
    (call,) = world.calls("LLM.pytorch")
    assert call["speculative_config"]["max_draft_len"] == 4
    assert (call["kv_cache_config"]["enable_partial_reuse"], call["kv_cache_config"]["enable_block_reuse"]) == (
        False,
        True,
    )
    assert call["print_iter_log"] is True
    assert "TRTLLMSampler" not in str(call)
    assert not call.get("enable_trtllm_sampler")


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        ("1.2.1", {"pipeline_parallel_size": 2}, "--pp-size"),
        ("1.2.1", {"max_beam_width": 2}, "--max-beam-width"),
        ("1.2.1", {"lora": (LoraAdapter("law", Path("law"), 1),)}, "--lora-dir"),
        ("1.0.0", {"guided_decoding_backend": "xgrammar", "tokenizer": Path()}, "--guided-decoding-backend"),
    ],
)
def test_what_it_does_not_go_with(version: str, options: dict[str, Any], said: str, world: World) -> None:
    with world.api(version) as installed:
        found = world.options(installed, "pytorch", extra_llm_api_options={"speculative_config": NGRAM}, **options)
        with pytest.raises(EngineLoadError, match=said):
            installed.open(found)


def test_a_draft_model_that_is_gone(world: World) -> None:
    drafter = {"decoding_type": "DraftTarget", "max_draft_len": 2, "speculative_model": str(world.folder / "gone")}
    with world.api("1.2.1") as installed:
        options = world.options(installed, "pytorch", extra_llm_api_options={"speculative_config": drafter})
        with pytest.raises(EngineLoadError, match=r"speculative_model in .*gone'"):
            installed.open(options)
        (world.folder / "gone").mkdir()
        with pytest.raises(EngineLoadError, match=r"draft model at .*gone .*config.json"):
            installed.open(options)


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1"])
def test_requests_beside_a_drafter(version: str, tmp_path: Path) -> None:
    """The same tokens, several per step; stops in the middle of a step; refusals by name that end nobody else."""
    checkpoint = small_checkpoint(tmp_path / "tiny", vocab_size=100, eos_token_id=[END, 91])
    recorder = Recorder()
    with in_process(version, tokens="5,6,7,8,91,9") as api:
        folder = write_fake_engine(tmp_path / "1", checkpoint, "pytorch", api, max_model_len=64, max_batch_size=4)
        built = load_manifest(folder)
        record = replace(TensorRtLlmRecord.of(built), extra_llm_api_options={"speculative_config": NGRAM})
        engine = load(folder, replace(built, record=record.fields()), EngineSettings(), recorder, api=api)
        greedy = SamplingParams(temperature=0)
        engine.submit(request(1, sampling=greedy, stop_token_ids=(END, 91)))
        engine.submit(request(2, sampling=greedy, max_tokens=3))
        engine.submit(request(3, sampling=greedy, stop_words=((6, 7),)))
        engine.submit(request(4, sampling=SamplingParams(temperature=0, presence_penalty=1.0)))
        engine.submit(request(5, sampling=greedy, logprobs=0))
        engine.submit(request(6, sampling=SamplingParams(temperature=0.5)))
        recorder.wait_end(1, 2, 3, 4, 5, 6)
        engine.close()
    assert {i: recorder.tokens[i] for i in (1, 2, 3)} == {1: [5, 6, 7, 8], 2: [5, 6, 7], 3: [5, 6, 7]}
    assert [recorder.reason(i) for i in (1, 2, 3)] == ["stop", "length", "stop"]
    assert "presence_penalty is not supported" in (recorder.ends[4].error or "")
    assert "logprobs is not supported" in (recorder.ends[5].error or "")
    if version == "1.0.0":
        assert (recorder.ends[6].error or "").startswith("temperature: 0 is needed, for TensorRT-LLM 1.0.0 decodes")
    else:
        assert recorder.ends[6].error is None
    assert recorder.breaches == []
