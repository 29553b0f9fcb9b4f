"""Arguments of `LLM` from a YAML file: what is refused by name, and which objects they become, version by version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.installed.llm_args import notes, objects, read, recorded
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm
from tests_tensorrt_llm.contracts.tables import signatures
from tests_tensorrt_llm.engine.fake_support import in_process

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
NGRAM = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}


def draft_model(folder: Path) -> str:
    path = folder / "draft"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    return str(path)


def whole(version: Version, folder: Path) -> list[dict[str, Any]]:
    """Values for everything that a version takes: one set per drafter."""
    table = recorded(version)
    (folder / "balance.yaml").write_text("")

    def value(kind: str) -> Any:
        bare = kind.rstrip("?!")
        if bare in table.classes:
            return {key: value(inner) for key, inner in table.classes[bare].items()}
        if bare.startswith("["):
            return [value(bare[1:-1])]
        plain = {"bool": True, "dir": draft_model(folder), "file": str(folder / "balance.yaml"), "float": 0.5}
        return plain.get(bare.partition(">")[0], 1 if bare.startswith("int") else bare.split("|")[0])

    kinds = dict(table.classes["TorchLlmArgs"])
    del kinds["speculative_config"]
    rest = {key: value(kind) for key, kind in kinds.items()}
    return [
        {**rest, "speculative_config": {"decoding_type": name, **value(drafter)}}
        for name, drafter in table.decoding_types.items()
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_classes_agree_with_the_signatures(version: str) -> None:
    """Nothing is taken that the class of that name does not have in the other table."""
    table, classes = recorded(Version.parse(version)), signatures(version)["classes"]
    for name in ("TorchLlmArgs", "KvCacheConfig", "SchedulerConfig"):
        fields = set(classes[name]["fields"])
        missing = set(table.classes[name]) - fields
        assert missing <= ({"context_chunking_policy", "dynamic_batch_config"} if name == "SchedulerConfig" else set())
    assert set(table.decoding_types.values()) <= set(table.classes)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1", "1.3.0rc21", "1.4.0rc1"])
def test_all_of_a_version(version: str, tmp_path: Path) -> None:
    """Every key is taken, stays what it is when read again, and the installed class takes it."""
    number = Version.parse(version)
    with in_process(version) as installed:
        package = TensorRtLlm(version)
        for values in whole(number, tmp_path):
            found = read(values, number)
            assert read(found, number) == found == values
            assert installed.refusal(values) == ""
            made = objects(package, found)
            drafter = recorded(number).decoding_types[values["speculative_config"]["decoding_type"]]
            assert type(made["speculative_config"]).__name__ == drafter
            assert made["cuda_graph_config"].batch_sizes == [1]
            assert type(made["kv_cache_config"]).__name__ == "KvCacheConfig"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1], "--extra-llm-api-options is no mapping of names to values"),
        ({1: 2}, "--extra-llm-api-options is no mapping of names to values"),
        ({"disable_overlap_schedulers": True}, "there is disable_overlap_scheduler; known for TorchLlmArgs of"),
        (
            {"xyz": 1},
            "xyz in --extra-llm-api-options: known for TorchLlmArgs of TensorRT-LLM 1.2: allreduce_strategy, ",
        ),
        ({"tensor_parallel_size": 2}, "it is set by --tp-size: leave it out here"),
        ({"kv_cache_config": {"max_tokens": 5}}, "kv_cache_config.max_tokens in --extra-llm-api-options: it is set by"),
        ({"scheduler_config": {"capacity_scheduler_policy": "X"}}, "it is set by --batch-scheduler-policy"),
        ({"tokenizer": "x"}, "tokenizer in --extra-llm-api-options: it cannot be set: the engine takes and gives"),
        ({"skip_tokenizer_init": True}, "skip_tokenizer_init in --extra-llm-api-options: it cannot be set"),
        ({"enable_tokenization_cache": True}, "it cannot be set: the engine takes and gives token ids"),
        ({"backend": "pytorch"}, "it is set by --flow"),
        ({"sampler_type": "auto"}, "it cannot be set: the sampler is chosen by what requests may ask for"),
        ({"batch_sizes": [1]}, "batch_sizes in --extra-llm-api-options: it belongs into cuda_graph_config; known for"),
        ({"moe_config": {"enable_attention_dp": True}}, "it belongs at the top; known for MoeConfig"),
        ({"moe_config": 5}, "moe_config in --extra-llm-api-options is 5: a mapping is needed"),
        ({"moe_config": {"backend": "FAST"}}, "is 'FAST': one of CUTLASS, CUTEDSL, WIDEEP, TRTLLM, DEEPGEMM, VANILLA"),
        ({"enable_attention_dp": "yes"}, "is 'yes': true or false is needed"),
        ({"stream_interval": 0}, "stream_interval in --extra-llm-api-options is 0: a whole number above 0 is needed"),
        ({"stream_interval": True}, "is True: a whole number above 0 is needed"),
        ({"batch_wait_timeout_ms": -1}, "is -1: a number of at least 0 is needed"),
        ({"cuda_graph_config": {"batch_sizes": [0]}}, "a list, of which each item is a whole number above 0 is needed"),
        ({"moe_config": {"load_balancer": "/nowhere"}}, "is '/nowhere', which is no file"),
        (
            {"scheduler_config": {"dynamic_batch_config": {}}},
            "dynamic_batch_config.enable_batch_size_tuning is missing",
        ),
        ({"speculative_config": 5}, "speculative_config.decoding_type in --extra-llm-api-options is None: give one of"),
        ({"speculative_config": {"decoding_type": "AUTO"}}, "'AUTO' (it chooses by the batch size: name the drafter)"),
        ({"speculative_config": {"decoding_type": "NGram"}}, "speculative_config.max_draft_len is missing in --extra"),
        (
            {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": "a/b"}},
            "speculative_model in --extra-llm-api-options is 'a/b', which is no directory (a model of the hub is down",
        ),
        (
            {"speculative_config": {"decoding_type": "MTP", "use_relaxed_acceptance_for_thinking": True}},
            "it cannot be set: it lets pass tokens that the model would not choose",
        ),
        (
            {"speculative_config": NGRAM | {"eagle3_one_model": True}},
            "it belongs into speculative_config; known for NG",
        ),
    ],
)
def test_refusals(values: Any, said: str) -> None:
    with pytest.raises(EngineLoadError) as caught:
        read(values, Version(1, 2, 1))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"telemetry_config": {"disabled": False}}, "sends nothing unless TRTLLM_NO_USAGE_STATS=0"),
        ({"multimodal_config": {}}, "this engine serves the text of a model alone"),
        ({"env_overrides": {}}, "variables go into the server's own environment"),
        ({"sparse_attention_config": {}}, "it changes the text that the model writes"),
        ({"cache_transceiver_config": {}}, "disaggregated serving"),
        ({"kv_cache_config": {"kv_events_config": {}}}, "the setting kv_events_endpoint publishes"),
        ({"scheduler_config": {"dynamic_batch_config": {}}}, "takes it and does nothing with it"),
        ({"post_processor_hook": "a.b"}, "text is made of token ids by openai_bls"),
        ({"enable_mla_skip_correction": True}, "it changes the text that the model writes"),
        ({"perf_metrics_output_dir": "x"}, "metrics and traces are those of openai_bls"),
        ({"moe_config": {"backend": "WIDEEP"}}, "is 'WIDEEP': one of AUTO, CUTLASS"),
        ({"speculative_config": NGRAM | {"allow_advanced_sampling": True}}, "it has no effect any more"),
        ({"speculative_config": {"decoding_type": "PARD"}}, "whether the model's own tokens stay"),
    ],
)
def test_refusals_of_what_is_new(values: Any, said: str) -> None:
    with pytest.raises(EngineLoadError) as caught:
        read(values, Version(1, 4))
    assert said in str(caught.value)


def test_eagle_is_another_name_from_1_3_on(tmp_path: Path) -> None:
    given = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": draft_model(tmp_path)}
    found = read({"speculative_config": given}, Version(1, 3))["speculative_config"]
    assert found == given | {"decoding_type": "Eagle3"}


@pytest.mark.parametrize(
    ("version", "key", "kind"),
    [("1.1", "speculative_model_dir", "DraftTarget"), ("1.2", "speculative_model", "DraftTarget")],
)
def test_both_names_of_a_draft_model(version: str, key: str, kind: str, tmp_path: Path) -> None:
    for given in ("speculative_model", "speculative_model_dir"):
        for name in (kind, "Draft_Target"):
            drafter = {"decoding_type": name, "max_draft_len": 2, given: draft_model(tmp_path)}
            found = read({"speculative_config": drafter}, Version.parse(version))["speculative_config"]
            assert found == {"decoding_type": kind, "max_draft_len": 2, key: draft_model(tmp_path)}


def test_null_is_taken_where_it_may_be() -> None:
    values = {"cuda_graph_config": None, "speculative_config": None}
    assert read(values, Version(1, 2)) == values
    with pytest.raises(EngineLoadError, match=r"print_iter_log in --extra-llm-api-options .*None"):
        read({"print_iter_log": None}, Version(1, 2))


def test_the_installed_class_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_bls_tensorrt_llm.installed.llm_args._type", lambda kind: object)
    with in_process("1.2.1") as installed:
        said = installed.refusal({"moe_config": {"backend": "FAST"}})
    assert said.startswith("moe_config in --extra-llm-api-options: TensorRT-LLM's MoeConfig refuses it: 1 validation")
    with in_process("0.20.0") as installed:
        assert "PyTorch" in installed.refusal({"print_iter_log": True})


def test_a_backend_that_goes_is_told() -> None:
    asked = {"moe_config": {"backend": "TRITON"}}
    told = [bool([*notes(read(asked, version), version)]) for version in map(Version.parse, ("1.2.1", "1.4.0rc4"))]
    assert told == [False, True]
    assert not [*notes(read({"moe_config": {"backend": "CUTLASS"}}, Version(1, 4)), Version(1, 4))]
