from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.core.settings import SettingsError
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls.triton_models.tensors.models import MODELS, ensemble
from tests.unit.engine_doubles import double
from tests.unit.triton_models.repository.rendering import check_setting, config


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As it is committed."""
    for model in MODELS.values():
        folder = tmp_path / model.name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(render(model))
    return tmp_path


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
        ("tensorrt_llm_bls.accumulate_tokens=true", r"tensorrt_llm_bls\."),
        ("tensorrt_llm_bls.bls_instance_count=4", r"tensorrt_llm_bls\.instances"),
        ("tensorrt_llm_bls.decoupled_mode=maybe", "true or false"),
        ("ensemble.decoupled_mode=true", r"set tensorrt_llm\.decoupled_mode"),
        ("postprocessing.postprocessing_instance_count=2", r"postprocessing\.instances"),
        ("preprocessing.triton_max_batch_size=8", r"preprocessing\.max_batch_size"),
        ("tensorrt_llm.engine_dir=/engines", r"tensorrt_llm\."),
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
    with pytest.raises(SettingsError, match="model 'preprocessing'"):
        configure(repository, ["preprocessing.instances=2"])


@pytest.mark.parametrize("name", ["config.pbtxt", "1"])
def test_what_cannot_be_written_is_told_in_a_sentence_and_nothing_is(repository: Path, name: str) -> None:
    # Something else where a file or the folder of a version should be: not even root may write there.
    config(repository, "ensemble").unlink()
    blocked = repository / "ensemble" / name
    blocked.mkdir() if name == "config.pbtxt" else blocked.touch()
    with pytest.raises(SettingsError, match=rf"ensemble/{name} ") as error:
        configure(repository, ["openai_bls.http_port=9100"])
    assert "\n" not in str(error.value)
    assert config(repository, "openai_bls").read_text() == render(MODELS["openai_bls"])


def test_a_file_that_is_no_text(repository: Path) -> None:
    config(repository, "ensemble").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"ensemble/config\.pbtxt "):
        configure(repository)


def test_a_further_engine(repository: Path) -> None:
    for model in ("tensorrt_llm", "preprocessing"):
        shutil.copytree(repository / model, repository / f"{model}_small")
    (repository / "tensorrt_llm_small" / "1").mkdir()
    write_manifest(repository / "tensorrt_llm_small" / "1", Manifest("null", "m", 64, 16, 0))
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
        ("http_port=1", "'http_port=1' .*MODEL.NAME=VALUE"),
        ("openai_bls.http_port", "'openai_bls.http_port' .*MODEL.NAME=VALUE"),
        ("openai.http_port=1", "'openai' .* openai_bls"),
        ("models.http_port=1", "'models' .* preprocessing, tensorrt_llm"),
        ("openai_bls.prt=1", "openai_bls: .* 'prt' .* http_host"),
        ("openai_bls.http_port=x", "openai_bls: http_port is 'x'; .* 65535"),
        ("openai_bls.api_key=secret", "openai_bls: .*'api_key'"),
        ("openai_bls.instances=-1", "instances is '-1'"),
        ("postprocessing.threads=2", "postprocessing .*; threads "),
        ("ensemble.instances=2", "ensemble .* instances "),
        ("ensemble.max_batch_size=100", "ensemble: max_batch_size is 100, .*tensorrt_llm is 64"),
        ("tensorrt_llm.instances=2", "tensorrt_llm: instances is 2"),
        ("tensorrt_llm.instances=0", "tensorrt_llm: instances is 0"),
        ("tensorrt_llm.max_queue_size=7", "tensorrt_llm: max_queue_size "),
        ("tensorrt_llm.max_queue_delay_microseconds=7", "tensorrt_llm: max_queue_delay_microseconds "),
        ("tensorrt_llm.decoupled_mode=perhaps", "decoupled_mode is 'perhaps'"),
        ("ensemble.colour=red", "ensemble .* parameters"),
        ("tensorrt_llm.gpt_model_path=/x", "tensorrt_llm: .* 'gpt_model_path'"),
        (
            "tensorrt_llm.batch_scheduler_policy=best",
            "tensorrt_llm: batch_scheduler_policy is 'best'; .*max_utilization",
        ),
        # What the server itself would refuse at its next start, or serve with other shapes.
        ("openai_bls.tool_call_parser=nobodys", "openai_bls: tool_call_parser is 'nobodys'; .* auto, none, "),
        ("openai_bls.reasoning_parser=tensorrt_llm=qwen,auto", "openai_bls: 'tensorrt_llm=qwen,auto'"),
        ("openai_bls.tool_call_parser=tensorrt_llm_x=hermes", "tool_call_parser .*tensorrt_llm_x, .* tensorrt_llm"),
        ("openai_bls.instances=0", "openai_bls: instances is 0"),
        ("openai_bls.max_batch_size=4", "openai_bls: max_batch_size is 4"),
        ("tensorrt_llm.max_batch_size=0", "tensorrt_llm: max_batch_size is 0"),
        ("preprocessing.max_batch_size=8", "ensemble: max_batch_size is 64, .*preprocessing is 8"),
    ],
)
def test_refused_changes(repository: Path, change: str, says: str) -> None:
    before = {path: path.read_text() for path in repository.glob("*/config.pbtxt")}
    with pytest.raises(SettingsError, match=says):
        configure(repository, ["openai_bls.http_port=9300", change])
    assert {path: path.read_text() for path in repository.glob("*/config.pbtxt")} == before


@pytest.mark.usefixtures("engine_doubles")
def test_settings_of_the_engine_that_is_there(repository: Path) -> None:
    (repository / "tensorrt_llm" / "1").mkdir()
    write_manifest(repository / "tensorrt_llm" / "1", double())
    check_setting(repository, "enable_kv_cache_reuse=false")
    check_setting(repository, "kv_cache_free_gpu_mem_fraction=0.5", "kv_cache_free_gpu_mem_fraction .* double")


def test_an_alias_that_is_a_further_engine(repository: Path) -> None:
    folder = repository / "tensorrt_llm_small" / "1"
    folder.mkdir(parents=True)
    (repository / "tensorrt_llm_small" / "config.pbtxt").touch()
    (repository / "preprocessing_small").mkdir()
    (repository / "preprocessing_small" / "config.pbtxt").touch()
    write_manifest(folder, Manifest("null", "tiny", max_model_len=100, max_batch_size=4, created=1))
    with pytest.raises(SettingsError, match=r"model_aliases .*tiny.* tensorrt_llm_small"):
        configure(repository, ["openai_bls.model_aliases=gpt,tiny"])


@pytest.mark.parametrize(
    ("addition", "says"),
    [
        ("optimization { priority: PRIORITY_MAX }", "openai_bls/config.pbtxt .*'optimization'"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching .*'preserve_ordering'"),
        ("instance_group [ { count: 1 kind: KIND_CPU } ]", "openai_bls/config.pbtxt .*instance groups"),
        ("nonsense: 1", "openai_bls/config.pbtxt .*nonsense"),
        ('parameters { key: "colour" value { string_value: "red" } }', "'colour'"),
    ],
)
def test_refused_files(repository: Path, addition: str, says: str) -> None:
    path = config(repository, "openai_bls")
    path.write_text(f"{path.read_text()}{addition}\n")
    with pytest.raises(SettingsError, match=says):
        configure(repository)
