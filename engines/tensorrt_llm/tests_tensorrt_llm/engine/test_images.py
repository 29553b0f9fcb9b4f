"""Images in TensorRT-LLM: which models have them, what the LLM API is given, and another count than ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.manifest import EngineLoadError, Manifest, record
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm.installed import images
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.loading import load
from tests.engine_contract.support import Recorder
from tests_tensorrt_llm.engine.fake_support import on_loop
from tests_tensorrt_llm.engine.scripted_api import ScriptedApi, manifest, write_engine
from tests_tensorrt_llm.installed.world import PLAIN, World

QWEN = "Qwen2_5_VLForConditionalGeneration"
MEDIA = MediaPrompt((Image(2, 3, bytes(range(18)), "u"),), "<image>?", (9, 5))


@pytest.mark.parametrize(
    ("architecture", "flow", "version", "said"),
    [
        (QWEN, "pytorch", "1.2.1", None),
        (QWEN, "pytorch", "1.4.0rc1", None),
        (QWEN, "pytorch", "1.1.0", "need TensorRT-LLM 1.2.0 or later, and this is 1.1.0"),
        (QWEN, "tensorrt", "1.2.1", "for --flow pytorch"),
        ("Qwen3VLForConditionalGeneration", "pytorch", "1.2.1", "need TensorRT-LLM 1.3.0 or later"),
        ("Gemma4ForConditionalGeneration", "pytorch", "1.3.0rc25", None),
        ("Gemma4ForConditionalGeneration", "pytorch", "1.3.0rc24", "need TensorRT-LLM 1.3.0rc25 or later"),
        ("Qwen3_5ForConditionalGeneration", "pytorch", "1.4.0rc4", None),
        ("NemotronH_Nano_Omni_Reasoning_V3", "pytorch", "1.4.0rc4", "not for NemotronH_Nano_Omni_Reasoning_V3"),
        ("Idefics3ForConditionalGeneration", "pytorch", "1.4.0", "not for Idefics3ForConditionalGeneration"),
    ],
)
def test_which_models(architecture: str, flow: Flow, version: str, said: str | None) -> None:
    found = images.problem(architecture, flow, Version.parse(version))
    assert (found is None) if said is None else (found is not None and said in found)


def test_the_call(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.opened() as (installed, llm):

        async def ask() -> list[int]:
            output = installed.generate(llm, [9, 5, 0, 0, 0], PLAIN, None, MEDIA)
            async for _ in output:
                pass
            return list(output.prompt_token_ids)

        assert on_loop(ask()) == [9, 5, 0, 0, 0]
    assert [call["sizes"] for call in world.calls("images")] == [[[2, 3]]]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[tuple[ScriptedApi, Recorder, Callable[[GenerationRequest], None]]]:
    folder = tmp_path / "1"
    built = seeing(folder)
    api, recorder = ScriptedApi(), Recorder()
    engine = load(folder, built, EngineSettings(), recorder, api=api)
    assert (engine.info.input_modalities, engine.info.max_images) == (("text", "image"), 2)
    yield api, recorder, engine.submit
    engine.close()


def seeing(folder: Path, architecture: str = QWEN) -> Manifest:
    """The folder of an engine that takes two images, as the builder leaves it."""
    built = write_engine(folder, manifest(flow="pytorch"))
    path = folder / "checkpoint" / "config.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "architectures": [architecture]}))
    return msgspec.structs.replace(built, max_images=2, files={"config.json": record(path)})


def request(request_id: int, prompt: list[int]) -> GenerationRequest:
    return GenerationRequest(request_id, prompt, 5, media=MEDIA)


def test_a_prompt_with_images(loaded: tuple[ScriptedApi, Recorder, Callable[[GenerationRequest], None]]) -> None:
    api, recorder, submit = loaded
    api.image_tokens = 3
    submit(request(1, [9, 5, 5, 5, 5]))
    output = api.next()
    output.push(7, finish="length")
    recorder.wait_end(1)
    assert recorder.tokens[1] == [7]
    assert api.media == [MEDIA]


def test_another_count_ends_that_request_alone(
    loaded: tuple[ScriptedApi, Recorder, Callable[[GenerationRequest], None]],
) -> None:
    api, recorder, submit = loaded
    api.image_tokens = 4
    submit(request(1, [9, 5, 5, 5, 5]))
    submit(request(2, [9, 5, 5, 5, 5, 5]))
    wrong, right = api.next_of(2)
    recorder.wait_end(1)
    assert recorder.deltas(1)[-1].error == ENGINE_FAILED
    assert wrong.aborted.is_set()
    right.push(7, finish="length")
    recorder.wait_end(2)
    assert recorder.tokens[2] == [7]


@pytest.mark.parametrize(
    ("architecture", "settings", "said"),
    [
        ("LlavaForConditionalGeneration", EngineSettings(), "LlavaForConditionalGeneration"),
        (QWEN, EngineSettings(kv_events_endpoint="tcp://127.0.0.1:5557"), "kv_events_endpoint"),
    ],
)
def test_what_does_not_load(tmp_path: Path, architecture: str, settings: EngineSettings, said: str) -> None:
    folder = tmp_path / "1"
    built = seeing(folder, architecture)
    with pytest.raises(EngineLoadError, match=said):
        load(folder, built, settings, Recorder(), api=ScriptedApi())
