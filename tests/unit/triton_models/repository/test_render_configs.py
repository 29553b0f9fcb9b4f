from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.core.settings import EngineSettings, SettingsError
from openai_bls.triton_models.repository.engine_configs import render_configs
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls.triton_models.tensors.models import MODELS, ensemble
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings, cpp_model, cpp_settings, engine_model
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from openai_bls_vllm.record import VllmRecord

NO_GRAMMARS = {"xgrammar_tokenizer_info_path": ""}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As it is committed."""
    for model in MODELS.values():
        folder = tmp_path / model.name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(render(model))
    return tmp_path


def config(repository: Path, model: str) -> Path:
    return repository / model / "config.pbtxt"


def test_an_empty_folder_gets_the_committed_files(tmp_path: Path) -> None:
    assert configure(tmp_path) == [config(tmp_path, name) for name in MODELS]
    for name, model in MODELS.items():
        assert config(tmp_path, name).read_text() == render(model)


def test_values_are_set_once_and_stay(repository: Path) -> None:
    assert configure(repository) == []
    changes = ["openai_bls.http_port=9100", "openai_bls.instances=2", "tensorrt_llm.max_tokens_in_paged_kv_cache=4096"]
    changes += ["postprocessing.max_queue_delay_microseconds=500", "postprocessing.max_queue_size=32"]
    changed = [config(repository, name) for name in ("tensorrt_llm", "postprocessing", "openai_bls")]
    assert sorted(configure(repository, changes)) == sorted(changed)
    for name, line in (
        ("openai_bls", 'key: "http_port" value { string_value: "9100" }'),
        ("openai_bls", "count: 2"),
        ("postprocessing", "max_queue_delay_microseconds: 500"),
        ("postprocessing", "max_queue_size: 32"),
    ):
        assert line in config(repository, name).read_text()
    assert configure(repository) == configure(repository, changes) == []
    # What is taken out goes back to the default.
    assert configure(repository, ["tensorrt_llm.max_tokens_in_paged_kv_cache="]) == [config(repository, "tensorrt_llm")]
    assert config(repository, "tensorrt_llm").read_text() == render(MODELS["tensorrt_llm"])


def test_an_engine_with_one_response_per_request(repository: Path) -> None:
    """tensorrt_llm_bls answers as its engine does."""
    models = [config(repository, name) for name in ("tensorrt_llm", "tensorrt_llm_bls")]
    assert configure(repository, ["tensorrt_llm.decoupled_mode=False"]) == models
    for model in models:
        assert "model_transaction_policy { decoupled: false }" in model.read_text()
    assert configure(repository) == []
    assert configure(repository, ["tensorrt_llm.decoupled_mode="]) == models
    for model in models:
        assert model.read_text() == render(MODELS[model.parent.name])


def test_unary_calls_and_streams_in_one_server(repository: Path) -> None:
    """A decoupled_mode of tensorrt_llm_bls stays, whatever that of its engine becomes."""
    streams = "model_transaction_policy { decoupled: true }"
    bls, engine = config(repository, "tensorrt_llm_bls"), config(repository, "tensorrt_llm")
    configure(repository, ["tensorrt_llm_bls.decoupled_mode=true"])
    configure(repository, ["tensorrt_llm.decoupled_mode=false"])
    assert streams in bls.read_text()
    assert streams not in engine.read_text()
    assert configure(repository) == []
    configure(repository, ["tensorrt_llm_bls.decoupled_mode="])
    assert streams not in bls.read_text()
    configure(repository, ["tensorrt_llm.decoupled_mode=", "tensorrt_llm_bls.decoupled_mode=false"])
    assert streams not in bls.read_text()
    assert streams in engine.read_text()


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("tensorrt_llm_bls.accumulate_tokens=true", "without it"),
        ("tensorrt_llm_bls.bls_instance_count=4", r"tensorrt_llm_bls\.instances"),
        ("tensorrt_llm_bls.decoupled_mode=maybe", "true or false"),
        ("ensemble.decoupled_mode=true", r"set tensorrt_llm\.decoupled_mode"),
        ("postprocessing.postprocessing_instance_count=2", r"postprocessing\.instances"),
        ("preprocessing.triton_max_batch_size=8", r"preprocessing\.max_batch_size"),
        ("tensorrt_llm.engine_dir=/engines", "the build writes its path"),
    ],
)
def test_official_names_get_a_hint(repository: Path, change: str, remedy: str) -> None:
    with pytest.raises(SettingsError, match=remedy) as caught:
        configure(repository, [change])
    assert change.partition("=")[0].partition(".")[2] in str(caught.value)


def test_tensorrt_llm_bls_of_an_older_release_becomes_a_model(repository: Path) -> None:
    model = config(repository, "tensorrt_llm_bls")
    model.write_text(render(msgspec.structs.replace(ensemble("tensorrt_llm_bls"), max_batch_size=16)))
    assert configure(repository, ["tensorrt_llm_bls.instances=2"]) == [model]
    expected = msgspec.structs.replace(MODELS["tensorrt_llm_bls"], max_batch_size=16, instances=2)
    assert model.read_text() == render(expected)


def test_tensorrt_llm_bls_is_an_ensemble_around_the_cpp_backend(repository: Path) -> None:
    """Its own choices end there, and a later render keeps it so."""
    configure(repository, ["tensorrt_llm_bls.instances=2"])
    settings = CppSettings(gpt_model_path="/srv/engine")
    config(repository, "tensorrt_llm").write_text(render(cpp_model(settings, 32)))
    model = config(repository, "tensorrt_llm_bls")
    assert model in configure(repository)
    assert 'platform: "ensemble"' in model.read_text()
    assert "max_batch_size: 32" in model.read_text()
    assert configure(repository) == []
    with pytest.raises(SettingsError, match=r"^tensorrt_llm_bls: .* set tensorrt_llm\.decoupled_mode"):
        configure(repository, ["tensorrt_llm_bls.decoupled_mode=true"])


def test_what_was_written_by_hand_stays_in_any_layout(repository: Path) -> None:
    path = config(repository, "openai_bls")
    path.write_text(
        path.read_text().replace(
            'parameters { key: "http_host" value { string_value: "127.0.0.1" } }',
            'parameters: {\n  key: "http_host"  # every interface\n  value: {\n    string_value: "0.0.0.0"\n  }\n}',
        )
    )
    configure(repository, ["openai_bls.http_port=9200"])
    text = path.read_text()
    assert 'parameters { key: "http_host" value { string_value: "0.0.0.0" } }' in text
    assert 'string_value: "9200"' in text


def test_a_queue_of_our_own_engine_is_kept_and_changed_but_not_made(repository: Path) -> None:
    path = config(repository, "tensorrt_llm")
    path.write_text(render(msgspec.structs.replace(MODELS["tensorrt_llm"], queue=Queue(500, 32))))
    assert configure(repository) == []
    configure(repository, ["tensorrt_llm.max_queue_size=16"])
    assert "max_queue_size: 16" in path.read_text()


def test_a_preprocessing_that_is_not_ours_is_left_alone(repository: Path) -> None:
    (repository / "preprocessing" / "1").mkdir()
    (repository / "preprocessing" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    theirs = config(repository, "preprocessing")
    theirs.write_text('parameters { key: "theirs" value { string_value: "1" } }')
    assert configure(repository, ["openai_bls.instances=2"]) == [config(repository, "openai_bls")]
    assert "theirs" in theirs.read_text()
    with pytest.raises(SettingsError, match="no model 'preprocessing'"):
        configure(repository, ["preprocessing.instances=2"])


def built(backend: Any = "cpp") -> Manifest:
    return Manifest("tensorrt_llm", "m", 64, 16, 0, record=TensorRtLlmRecord(version="1.2.1", backend=backend).fields())


def test_a_cpp_engine_stays_one(repository: Path) -> None:
    settings = cpp_settings(built(), EngineSettings(), Path("/srv/tensorrt_llm/1"))
    for name, text in render_configs(engine_model(built(), settings, Queue(100))).items():
        config(repository, name).write_text(text)
    assert configure(repository) == []
    assert configure(repository, ["tensorrt_llm.kv_cache_free_gpu_mem_fraction=0.5"]) == [
        config(repository, "tensorrt_llm")
    ]
    text = config(repository, "tensorrt_llm").read_text()
    assert 'key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" }' in text
    assert 'backend: "tensorrtllm"' in text
    assert configure(repository) == []
    configure(repository, ["tensorrt_llm.gpu_device_ids=0;1;2"])
    assert "instance_group [ { count: 3 kind" in config(repository, "tensorrt_llm").read_text()
    with pytest.raises(SettingsError, match=r"one for each group of GPUs in gpu_device_ids \(3\)"):
        configure(repository, ["tensorrt_llm.instances=2"])
    # The ensembles follow a smaller engine.
    configure(repository, ["tensorrt_llm.max_batch_size=4"])
    assert "max_batch_size: 4\n" in config(repository, "ensemble").read_text()


def on_cpp(repository: Path, settings: EngineSettings | None = None) -> dict[str, str]:
    """Renders the repository as a build does; the paths in the engine's configuration."""
    folder = repository / "tensorrt_llm" / "1"
    own = cpp_settings(built(), settings or EngineSettings(), folder)
    for name, text in render_configs(engine_model(built(), own, Queue(100))).items():
        config(repository, name).write_text(text)
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "xgrammar_tokenizer_info.json").touch()
    return paths(repository)


def paths(repository: Path) -> dict[str, str]:
    given = config_pbtxt.parameters(config_pbtxt.read(config(repository, "tensorrt_llm")))
    return {name: value for name, value in given.items() if name.endswith("_path") and name != "executor_worker_path"}


def test_a_copied_repository_gets_its_own_paths(repository: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for model in MODELS:
        (repository / model).rename(old / model)
    before = on_cpp(old, EngineSettings(guided_decoding_backend="xgrammar"))
    shutil.copytree(old, new)
    assert configure(new) == [config(new, "tensorrt_llm")]
    engine = new / "tensorrt_llm" / "1" / "engine"
    assert paths(new) == {
        "gpt_model_path": str(engine),
        "xgrammar_tokenizer_info_path": str(engine / "xgrammar_tokenizer_info.json"),
    }
    assert configure(new) == []
    # A link to the same place is the same place.
    (tmp_path / "link").symlink_to(old)
    assert configure(tmp_path / "link") == []
    assert paths(old) == before


def test_the_path_of_an_engine_elsewhere_stays(repository: Path) -> None:
    on_cpp(repository)
    with pytest.raises(SettingsError, match="gpt_model_path is /srv/large, but this model has its own, "):
        configure(repository, ["tensorrt_llm.gpt_model_path=/srv/large"])
    assert paths(repository) == {"gpt_model_path": str(repository / "tensorrt_llm/1/engine"), **NO_GRAMMARS}
    shutil.rmtree(repository / "tensorrt_llm" / "1" / "engine")
    configure(repository, ["tensorrt_llm.gpt_model_path=/srv/large"])
    assert configure(repository) == []
    assert paths(repository) == {"gpt_model_path": "/srv/large", **NO_GRAMMARS}


def test_limits_of_the_cpp_backend(repository: Path) -> None:
    """Several instances are for it alone; an ensemble has no larger batches than its engine."""
    on_cpp(repository)
    configure(repository, ["tensorrt_llm.instances=2", "tensorrt_llm.gpu_device_ids=0;1"])
    assert "count: 2" in config(repository, "tensorrt_llm").read_text()
    with pytest.raises(SettingsError, match="decoupled_mode is false, but openai_bls has its tokens"):
        configure(repository, ["tensorrt_llm.decoupled_mode=false"])
    with pytest.raises(SettingsError, match="ensemble: max_batch_size is 100, that of tensorrt_llm is 16"):
        configure(repository, ["ensemble.max_batch_size=100"])
    configure(repository, ["ensemble.max_batch_size=8"])
    assert "max_batch_size: 8\n" in config(repository, "ensemble").read_text()


@pytest.mark.parametrize("name", ["config.pbtxt", "1"])
def test_what_cannot_be_written_is_told_in_a_sentence_and_nothing_is(repository: Path, name: str) -> None:
    # Something else where a file or the folder of a version should be: not even root may write there.
    config(repository, "ensemble").unlink()
    blocked = repository / "ensemble" / name
    blocked.mkdir() if name == "config.pbtxt" else blocked.touch()
    with pytest.raises(SettingsError, match=rf"ensemble/{name} cannot be read and written \(.*mount it") as error:
        configure(repository, ["openai_bls.http_port=9100"])
    assert "\n" not in str(error.value)
    assert config(repository, "openai_bls").read_text() == render(MODELS["openai_bls"])


def test_a_file_that_is_no_text(repository: Path) -> None:
    config(repository, "ensemble").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"ensemble/config\.pbtxt is not readable"):
        configure(repository)


def test_a_further_engine(repository: Path) -> None:
    for model in ("tensorrt_llm", "preprocessing"):
        shutil.copytree(repository / model, repository / f"{model}_small")
    (repository / "tensorrt_llm_small" / "1").mkdir()
    write_manifest(repository / "tensorrt_llm_small" / "1", built("python"))
    engine = config(repository, "tensorrt_llm_small")
    engine.write_text(f"# Rendered by `build/engine.py --name small`.\n{engine.read_text()}")
    configure(repository, ["tensorrt_llm_small.enable_chunked_context=true"])
    text = engine.read_text()
    assert text.startswith("# Rendered by `build/engine.py --name small`.\n")
    assert 'name: "tensorrt_llm_small"' in text
    assert 'key: "enable_chunked_context" value { string_value: "true" }' in text
    assert config(repository, "tensorrt_llm").read_text() == render(MODELS["tensorrt_llm"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("http_port=1", "not MODEL.NAME=VALUE"),
        ("openai_bls.http_port", "not MODEL.NAME=VALUE"),
        ("openai.http_port=1", "no model 'openai' in the repository; there are preprocessing, tensorrt_llm"),
        ("openai_bls.prt=1", "openai_bls: unknown parameter 'prt' in config.pbtxt; known are http_host"),
        ("openai_bls.http_port=x", "openai_bls: http_port is 'x'; it is a whole number from 0 to 65535"),
        ("openai_bls.api_key=secret", "unknown parameter 'api_key'"),
        ("openai_bls.instances=-1", "instances is '-1': a number from 0"),
        ("postprocessing.threads=2", "postprocessing has no parameters"),
        ("ensemble.instances=2", "ensemble is an ensemble"),
        ("ensemble.max_batch_size=100", "ensemble: max_batch_size is 100, that of tensorrt_llm is 64"),
        ("tensorrt_llm.instances=2", "tensorrt_llm: instances is 2, but an engine has one"),
        ("tensorrt_llm.instances=0", "tensorrt_llm: instances is 0, but an engine has one"),
        ("tensorrt_llm.max_queue_size=7", "tensorrt_llm: max_queue_size is for engines of the C"),
        ("tensorrt_llm.max_queue_delay_microseconds=7", "max_queue_delay_microseconds is for engines of the C"),
        ("tensorrt_llm.decoupled_mode=perhaps", "decoupled_mode is 'perhaps': true or false"),
        ("ensemble.colour=red", "ensemble is an ensemble: it has no parameters"),
        ("tensorrt_llm.gpt_model_path=/x", "tensorrt_llm: unknown parameter 'gpt_model_path'"),
        ("tensorrt_llm.batch_scheduler_policy=best", "tensorrt_llm: batch_scheduler_policy is 'best'; it is one of "),
        # What the server itself would refuse at its next start, or serve with other shapes.
        ("openai_bls.tool_call_parser=nobodys", "openai_bls: tool_call_parser is 'nobodys'; known are auto, none, "),
        ("openai_bls.reasoning_parser=tensorrt_llm=qwen,auto", "is neither one format nor a list of"),
        ("openai_bls.tool_call_parser=tensorrt_llm_x=hermes", "names tensorrt_llm_x, which is none of tensorrt_llm"),
        ("openai_bls.instances=0", "openai_bls: instances is 0: a number from 1"),
        ("openai_bls.max_batch_size=4", "openai_bls: max_batch_size is 4, and must be 0"),
        ("tensorrt_llm.max_batch_size=0", "tensorrt_llm: max_batch_size is 0, and must be a number from 1"),
        ("preprocessing.max_batch_size=8", "ensemble: max_batch_size is 64, and that of its step preprocessing is 8"),
    ],
)
def test_refused_changes(repository: Path, change: str, says: str) -> None:
    before = {path: path.read_text() for path in repository.glob("*/config.pbtxt")}
    with pytest.raises(SettingsError, match=says):
        configure(repository, ["openai_bls.http_port=9300", change])
    assert {path: path.read_text() for path in repository.glob("*/config.pbtxt")} == before


@pytest.mark.parametrize(
    ("engine", "change", "says"),
    [
        ("transformers", "kv_cache_free_gpu_mem_fraction=0.5", "is for TensorRT-LLM engines, and this one is embedded"),
        ("transformers", "guided_decoding_backend=xgrammar", "is for TensorRT-LLM engines, and this one is embedded"),
        ("transformers", "max_tokens_in_paged_kv_cache=99", "99 does not hold one sequence of 100 tokens"),
        ("transformers", "max_tokens_in_paged_kv_cache=100", ""),
        ("transformers", "enable_kv_cache_reuse=false", ""),
        ("vllm", "kv_cache_free_gpu_mem_fraction=0.5", "is not for vLLM: leave it out; give gpu_memory_utilization"),
        ("vllm", "enable_kv_cache_reuse=false", ""),
        ("tensorrt_llm", "kv_cache_free_gpu_mem_fraction=0.5", ""),
        ("tensorrt_llm", "guided_decoding_backend=llguidance", "llguidance is not for TensorRT engines"),
    ],
)
def test_settings_of_the_engine_that_is_there(repository: Path, engine: str, change: str, says: str) -> None:
    records = {"tensorrt_llm": TensorRtLlmRecord("1.2.1").fields(), "vllm": VllmRecord("0.32.0").fields()}
    manifest = Manifest(engine, "m", max_model_len=100, max_batch_size=4, created=1, record=records.get(engine, {}))
    (repository / "tensorrt_llm" / "1").mkdir()
    write_manifest(repository / "tensorrt_llm" / "1", manifest)
    if not says:
        assert configure(repository, [f"tensorrt_llm.{change}"]) == [config(repository, "tensorrt_llm")]
        return
    with pytest.raises(SettingsError, match=f"tensorrt_llm: .*{says}"):
        configure(repository, [f"tensorrt_llm.{change}"])
    # Written by hand, it is told of as well, until it is taken out.
    name, _, value = change.partition("=")
    path = config(repository, "tensorrt_llm")
    path.write_text(f'{path.read_text()}parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n')
    with pytest.raises(SettingsError, match=says):
        configure(repository)
    assert configure(repository, [f"tensorrt_llm.{name}="]) == [path]


def test_an_alias_that_is_a_further_engine(repository: Path) -> None:
    folder = repository / "tensorrt_llm_small" / "1"
    folder.mkdir(parents=True)
    (repository / "tensorrt_llm_small" / "config.pbtxt").touch()
    (repository / "preprocessing_small").mkdir()
    (repository / "preprocessing_small" / "config.pbtxt").touch()
    write_manifest(folder, Manifest("transformers", "tiny", max_model_len=100, max_batch_size=4, created=1))
    with pytest.raises(SettingsError, match="model_aliases has tiny, the name of the engine in tensorrt_llm_small"):
        configure(repository, ["openai_bls.model_aliases=gpt,tiny"])


@pytest.mark.parametrize(
    ("addition", "says"),
    [
        ("optimization { priority: PRIORITY_MAX }", "openai_bls/config.pbtxt has 'optimization', which would be lost"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching has 'preserve_ordering'"),
        ("instance_group [ { count: 1 kind: KIND_CPU } ]", "several instance groups"),
        ("nonsense: 1", "openai_bls/config.pbtxt is not readable"),
        ('parameters { key: "colour" value { string_value: "red" } }', "unknown parameter 'colour'"),
    ],
)
def test_refused_files(repository: Path, addition: str, says: str) -> None:
    path = config(repository, "openai_bls")
    path.write_text(f"{path.read_text()}{addition}\n")
    with pytest.raises(SettingsError, match=says):
        configure(repository)
