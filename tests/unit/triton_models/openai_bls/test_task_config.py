from __future__ import annotations

import re
from typing import Any

import pytest

from openai_bls.pipeline.task_models.registry import TASKS
from openai_bls.triton_models.openai_bls.task_config import SIGNATURES, task_model
from tests.unit.pipeline.task_models.task_support import config, model, tensor

FP32 = "TYPE_FP32"
DECOUPLED: dict[str, Any] = {"model_transaction_policy": {"decoupled": True}}
VECTOR = [tensor("embedding", FP32, [4])]
HEARS = [tensor("audio", FP32, [-1])]
SEGMENTS = [*(tensor(f"segment_{end}", FP32, [-1]) for end in ("start", "end")), tensor("segment_text", dims=[-1])]
PAIR = [tensor("query"), tensor("document")]


def test_each_task_with_its_defaults() -> None:
    assert set(SIGNATURES) == set(TASKS)
    for task in TASKS:
        found = model(task)
        assert (found.name, found.task, found.created, found.fault) == ("other", task, 7, None)
        assert all(role == spec.name for role, spec in {**found.inputs, **found.outputs}.items())
        assert (found.max_batch_size, found.decoupled, found.timeout_s) == (8, False, None)


def test_a_model_without_a_task_is_none() -> None:
    assert task_model(config(None), created=7) is None
    assert task_model({"name": "bare"}, created=7) is None
    assert task_model(config(None, parameters={"openai_task_of_mine": {}}), created=7) is None


def test_tensors_by_other_names_and_options() -> None:
    found = model(
        "embeddings",
        input=[
            tensor("TEXT", optional=True),
            tensor("IDS", "TYPE_INT64", ["-1"], optional=True),
            tensor("x", optional=True),
        ],
        output=[tensor("VECTOR", FP32, [-1]), tensor("prompt_tokens", "TYPE_INT32"), tensor("more")],
        openai_input_text="TEXT",
        openai_input_token_ids="IDS",
        openai_output_embedding="VECTOR",
        openai_dimensions="matryoshka",
        openai_timeout_s="2.5",
    )
    assert found.fault is None
    assert {role: spec.name for role, spec in found.inputs.items()} == {"text": "TEXT", "token_ids": "IDS"}
    assert {role: spec.name for role, spec in found.outputs.items()} == {
        "embedding": "VECTOR",
        "prompt_tokens": "prompt_tokens",
    }
    assert (found.inputs["token_ids"].data_type, found.inputs["token_ids"].dims) == ("TYPE_INT64", (-1,))
    assert (found.matryoshka, found.timeout_s) == (True, 2.5)


def test_classes() -> None:
    found = model("classify", openai_threshold="0.25")
    assert (found.labels, found.threshold) == (("harm", "spam"), 0.25)
    outputs = [tensor("scores", FP32, [-1]), tensor("labels", dims=[-1])]
    found = model("classify", output=outputs, openai_labels=None)
    assert (found.fault, found.labels, found.threshold) == (None, (), 0.5)


@pytest.mark.parametrize("task", ["chat", "speech", "transcription"])
def test_some_tasks_may_be_decoupled(task: str) -> None:
    assert model(task, **DECOUPLED).fault is None
    assert model(task, **DECOUPLED).decoupled


def test_speech() -> None:
    found = model("speech")
    assert (found.sample_rate, found.formats, found.voices) == (24000, ("wav", "pcm"), ())
    inputs = [tensor("text"), *(tensor(name, optional=True) for name in ("voice", "instructions", "format"))]
    found = model(
        "speech",
        input=[*inputs, tensor("speed", FP32, optional=True)],
        output=[tensor("audio")],
        openai_sample_rate=None,
        openai_formats="mp3, opus",
        openai_voices="ann, bob",
    )
    assert (found.fault, found.sample_rate, found.formats) == (None, None, ("mp3", "opus"))
    assert (found.voices, set(found.inputs)) == (("ann", "bob"), {"text", "voice", "instructions", "speed", "format"})


def test_transcription() -> None:
    assert (model("transcription").sample_rate, model("transcription").language) == (16_000, "")
    outputs = [tensor("text"), *SEGMENTS, tensor("segment_avg_logprob", FP32, [-1])]
    found = model("transcription", output=outputs, openai_language="en", openai_sample_rate="8000")
    assert (found.fault, found.language, found.sample_rate) == (None, "en", 8000)
    assert set(found.outputs) == {tensor["name"] for tensor in outputs}


@pytest.mark.parametrize(
    ("task", "changes", "fault"),
    [
        ("translate", {}, "openai_task is 'translate', which is none of chat, classify, embeddings, rerank, score"),
        ("", {}, "openai_task is '', which is none of"),
        ("embeddings", DECOUPLED, "it is decoupled, and a model of the task embeddings answers"),
        (
            "embeddings",
            {"openai_dimension": "fixed"},
            "its parameter 'openai_dimension' is none of openai_task, openai_timeout_s",
        ),
        ("rerank", {"openai_labels": "a"}, "its parameter 'openai_labels' is none of"),
        ("embeddings", {"input": []}, "it has neither an input 'text'"),
        ("embeddings", {"input": [tensor("TEXT")]}, "it has neither an input 'text'"),
        ("embeddings", {"openai_input_text": "TEXT"}, r"it has no input 'TEXT' \(there: text; openai_input_"),
        ("embeddings", {"output": []}, r"it has no output 'embedding' \(there: none; openai_output_embedding"),
        (
            "embeddings",
            {"output": [tensor("embedding", "TYPE_FP16", [4])]},
            "its output 'embedding' is TYPE_FP16, not TYPE_FP32",
        ),
        ("embeddings", {"input": [tensor("text", "TYPE_INT32")]}, "its input 'text' is TYPE_INT32, not TYPE_STRING"),
        ("embeddings", {"input": [tensor("text", dims=[2])]}, r"its input 'text' has dims \[2\], not \[ 1 \]"),
        ("embeddings", {"input": [tensor("token_ids", "TYPE_INT32", [512])]}, r"dims \[512\], not \[ -1 \]"),
        (
            "embeddings",
            {"input": [tensor("text"), tensor("token_ids", "TYPE_INT32", [-1], optional=True)]},
            "both must be optional",
        ),
        ("embeddings", {"input": [tensor("text"), tensor("mode")]}, "its input 'mode' is required, and the task"),
        ("embeddings", {"openai_dimensions": "768"}, "'768', which is neither fixed nor matryoshka"),
        ("embeddings", {"openai_timeout_s": "0"}, "openai_timeout_s is '0', not a number above 0"),
        ("embeddings", {"openai_timeout_s": "nan"}, "not a number above 0"),
        ("rerank", {"input": [tensor("query")]}, "it has no input 'document'"),
        ("rerank", {"output": [tensor("score", FP32, [2])]}, r"its output 'score' has dims \[2\], not \[ 1 \]"),
        ("score", {"output": VECTOR}, "it has no output 'score'"),
        ("classify", {"openai_labels": None}, "either from openai_labels or from an output 'labels'"),
        ("classify", {"openai_labels": "a,b,c"}, "openai_labels has 3 names, and its output 'scores' 2 scores"),
        ("classify", {"openai_labels": "a,a"}, "openai_labels has a name twice"),
        ("classify", {"openai_threshold": "high"}, "openai_threshold is 'high', not a number"),
        ("chat", {"input": PAIR}, "it has no input 'request'"),
        ("speech", {"output": [tensor("audio", "TYPE_INT32", [-1])]}, "is TYPE_INT32, not TYPE_INT16 or"),
        ("speech", {"openai_sample_rate": None}, "openai_sample_rate does not say"),
        ("speech", {"openai_sample_rate": "7999"}, "openai_sample_rate is 7999, not a whole number from 8000"),
        ("speech", {"openai_sample_rate": "22050.5"}, "openai_sample_rate is 22050.5, not a whole"),
        ("speech", {"openai_formats": "wav"}, "which are answered as wav and pcm"),
        ("speech", {"input": [tensor("text"), tensor("format")]}, "which are answered as wav and pcm"),
        ("speech", {"output": [tensor("audio")]}, "openai_formats does not say which of mp3, opus"),
        ("speech", {"output": [tensor("audio")], "openai_formats": "ogg"}, "openai_formats has 'ogg', which is none"),
        ("speech", {"output": [tensor("audio")], "openai_formats": "mp3,mp3"}, "openai_formats has a name twice"),
        ("speech", {"output": [tensor("audio")], "openai_formats": "mp3,aac"}, "no input 'format' tells it"),
        ("speech", {"openai_voices": "ann"}, "no input 'voice' tells it"),
        ("transcription", {"input": [tensor("audio", "TYPE_INT16", [-1])]}, "is TYPE_INT16, not TYPE_FP32"),
        ("transcription", {"input": [tensor("audio", FP32, [16000])]}, r"not \[ -1 \]"),
        ("transcription", {"openai_sample_rate": "96000"}, "openai_sample_rate is 96000, not a whole number"),
        ("transcription", {"output": [tensor("text"), *SEGMENTS[:2]]}, "not all of segment_start, segment_end"),
        ("transcription", {"output": [tensor("text"), tensor("word", dims=[-1])]}, "not all of word_start"),
        ("transcription", {"output": [tensor("text"), tensor("segment_no_speech_prob", FP32, [-1])]}, "no segments"),
        ("transcription", {"output": [tensor("text"), tensor("prompt_tokens", "TYPE_INT32")]}, "and not the other"),
        ("transcription", {"input": [*HEARS, tensor("language")], "openai_language": "en"}, "is its only language"),
    ],
)
def test_faults(task: str, changes: dict[str, Any], fault: str) -> None:
    found = model(task, **changes)
    assert found.fault is not None
    assert re.search(fault, found.fault)
