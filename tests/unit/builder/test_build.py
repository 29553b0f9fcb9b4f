"""Building: what lands where, what is refused, and that the last engine survives a failed build."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from openai_bls.builder.source.hub import default_name
from openai_bls.builder.targets.folders import TOKENIZER_MODELS
from openai_bls.builder.targets.selection import sole_build, target_of
from openai_bls.core.engine_types import Grammar
from openai_bls.core.manifest import EngineLoadError, load_manifest
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.registry import create_engine
from tests.engine_contract.support import Recorder
from tests.unit.builder.builds import answer, build_main, refusal, run
from tests.unit.builder.repositories import leftovers

ROOT = Path(__file__).resolve().parents[3]


def test_files_and_manifest(source: Path, repository: Path) -> None:
    manifest, lines = run(source, repository, max_model_len=300, max_batch_size=8, dtype="float32")
    assert manifest.model_name == "tiny-qwen"
    assert (manifest.max_model_len, manifest.max_batch_size) == (300, 8)
    assert load_manifest(repository / "tensorrt_llm" / "1") == manifest
    assert set(manifest.files) == {"config.json", "generation_config.json", "model.safetensors"}
    for name in TOKENIZER_MODELS:
        held = {path.name for path in (repository / name / "1" / "tokenizer").iterdir()}
        assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= held
    assert any("model.safetensors" in line for line in lines)
    assert not leftovers(repository)
    assert len(answer(repository)) == 8


def test_what_needs_no_build(source: Path, repository: Path) -> None:
    first, _ = run(source, repository)
    weights = repository / "tensorrt_llm" / "1" / "checkpoint" / "model.safetensors"
    inode = weights.stat().st_ino
    again, lines = run(source, repository)
    assert again == first
    assert "up to date" in lines[0]
    manifest, lines = run(source, repository, served_model_name="other")
    assert load_manifest(repository / "tensorrt_llm" / "1") == manifest
    assert manifest.model_name == "other"
    assert "no rebuild" in lines[-1]
    assert weights.stat().st_ino == inode
    run(source, repository, force=True)
    assert weights.stat().st_ino != inode


def test_a_change_builds_again(source: Path, repository: Path) -> None:
    first, _ = run(source, repository)
    assert run(source, repository, max_model_len=100)[0].max_model_len == 100
    assert run(source, repository)[0].source == first.source
    os.utime(source / "model.safetensors", ns=(1, 1))
    assert run(source, repository)[0].source != first.source
    for name in ("preprocessing", "tensorrt_llm"):
        shutil.rmtree(repository / name / "1" / "tokenizer")
        run(source, repository)
        assert (repository / name / "1" / "tokenizer" / "tokenizer.json").is_file()


def test_config_json_is_read_once(source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the check that each small file is whole."""
    reads, read = list[Path](), Path.read_bytes

    def noted(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    run(source, repository)
    assert reads.count(source / "config.json") == 2


def test_a_build_takes_the_place_of_an_engine_for_several_gpus(source: Path, repository: Path) -> None:
    """An older release's, which is refused at its load."""
    built, _ = run(source, repository)
    path = repository / "tensorrt_llm" / "1" / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tensor_parallel_size": 2}))
    with pytest.raises(EngineLoadError, match="--tp-size 2"):
        load_manifest(path.parent)
    again, said = run(source, repository)
    assert "up to date" not in said[0]
    assert again.source == built.source
    assert load_manifest(path.parent) == again


def test_the_engine_has_the_tokenizer_for_grammars(source: Path, repository: Path) -> None:
    run(source, repository)
    factory = llguidance_backend.load(repository / "tensorrt_llm" / "1" / "tokenizer", 1000, [])
    assert factory is not None
    assert factory.make(Grammar("regex", "x"), []) is not None


def test_training_on_does_not_reach_the_engine(source: Path, repository: Path) -> None:
    run(source, repository)
    wanted = answer(repository)
    with (source / "model.safetensors").open("r+b") as file:
        file.seek(-4000, os.SEEK_END)
        file.write(b"\x00" * 4000)
    assert answer(repository) == wanted


@pytest.mark.parametrize(
    "step", ["openai_bls.builder.build.place_tokenizer", "openai_bls.builder.targets.default.write_manifest"]
)
def test_a_failed_build_leaves_the_last_engine(
    source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first, _ = run(source, repository)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(source, repository, max_model_len=99)
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
    assert load_manifest(repository / "tensorrt_llm" / "1") == first


@pytest.mark.parametrize("where", ["place_tokenizer", 4])
def test_a_killed_build(source: Path, repository: Path, where: str | int) -> None:
    """Killed while preparing: the last engine loads. Killed while moving: the loader says so, and the next build takes
    it back, even if it fails itself."""
    run(source, repository, engine="null")
    code = f"""
        import os, signal
        from pathlib import Path
        from openai_bls.builder import build as package
        where, rename, count = {where!r}, Path.rename, 0
        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        def counted(self, target):
            global count
            count += 1
            return die() if count == where else rename(self, target)
        Path.rename = counted
        if isinstance(where, str):
            setattr(package, where, die)
        options = package.BuildOptions({str(source)!r}, Path({str(repository)!r}), max_model_len=99, engine="null")
        package.build(options, print)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert leftovers(repository)
    if where == "place_tokenizer":
        assert len(answer(repository)) == 8
    else:
        with pytest.raises(EngineLoadError, match="cut short"):
            answer(repository)
        assert "--max-seq-len 0" in refusal(source, repository, engine="null", max_model_len=0)
        assert len(answer(repository)) == 8
    assert run(source, repository, engine="null")[0].max_model_len == 512
    assert not leftovers(repository)
    assert len(answer(repository)) == 8


def test_two_builds_at_once(source: Path, repository: Path) -> None:
    """The second would take the first's work for that of a killed one."""
    with sole_build(target_of(repository, "")):
        assert "another build" in refusal(source, repository)
    run(source, repository)


def test_a_full_disk(source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        # As `shutil.copyfile` does it.
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("openai_bls.builder.tokenizer.placing.place", full)
    said = refusal(source, repository)
    assert said.startswith("the disk is full: ")
    assert f"GiB are free at {repository / 'tensorrt_llm' / '1'}" in said
    assert "--workspace" not in said


def test_weights_in_parts(source: Path, repository: Path) -> None:
    from transformers import AutoModelForCausalLM

    run(source, repository)
    wanted = answer(repository)
    model = AutoModelForCausalLM.from_pretrained(source)
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="100KB")
    parts = sorted(path.name for path in source.glob("model-*.safetensors"))
    assert len(parts) > 1
    run(source, repository)
    assert answer(repository) == wanted
    (source / parts[0]).unlink()
    assert parts[0] in refusal(source, repository)
    assert answer(repository) == wanted


def test_pytorch_weights_are_converted(source: Path, repository: Path) -> None:
    run(source, repository)
    wanted = answer(repository)
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    run(source, repository)
    assert (repository / "tensorrt_llm" / "1" / "checkpoint" / "model.safetensors").is_file()
    assert answer(repository) == wanted


def test_null_engine_without_weights(source: Path, repository: Path) -> None:
    (source / "model.safetensors").unlink()
    manifest, _ = run(source, repository, engine="null", served_model_name="nobody")
    assert (manifest.engine, manifest.model_name) == ("null", "nobody")
    assert len(answer(repository)) == 8


def test_refusals(source: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TensorRT-LLM is not installed" in refusal(source, repository, engine="tensorrt_llm")
    assert "is a file, not a directory" in refusal(source / "config.json", repository)
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refusal(tmp_path / "empty", repository)
    assert "no folder tensorrt_llm" in refusal(source, tmp_path)
    assert "--max-seq-len 513" in refusal(source, repository, max_model_len=513)
    assert "--max-seq-len 0" in refusal(source, repository, max_model_len=0)
    assert "--max-batch-size" in refusal(source, repository, max_batch_size=0)
    assert "sequence of 512" in refusal(source, repository, max_tokens_in_kv_cache=511)
    assert "sequence of 100" in refusal(source, repository, max_tokens_in_kv_cache=-1, max_model_len=100)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("nobody/no-such-model", repository)


def test_a_tokenizer_in_python(source: Path, repository: Path) -> None:
    """None is made without running it, and what runs may not give one."""
    (source / "tokenizer.json").unlink()
    (source / "vocab.txt").write_text("a\n")
    config = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    code = """
        from transformers import PreTrainedTokenizer
        class OwnTokenizer(PreTrainedTokenizer):
            vocab_size = 1
            def get_vocab(self):
                return {"a": 0}
            def _tokenize(self, text):
                return ["a"]
            def _convert_token_to_id(self, token):
                return 0
            def _convert_id_to_token(self, index):
                return "a"
            def save_vocabulary(self, save_directory, filename_prefix=None):
                return ()
    """
    (source / "tokenization_own.py").write_text(textwrap.dedent(code))
    said = refusal(source, repository)
    assert "--trust-remote-code" in said
    said = refusal(source, repository, trust_remote_code=True)
    assert "cannot be written as one" in said
    assert "put one beside the checkpoint" in said


def test_a_tokenizer_of_a_known_family(source: Path, repository: Path) -> None:
    """Made without its code, with the chat template and the end token that its code has."""
    for path in source.glob("*token*"):
        path.unlink()
    (source / "chat_template.jinja").unlink()
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(config | {"model_type": "qwen", "architectures": ["QWenLMHeadModel"]})
    )
    lines = (b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))
    (source / "qwen.tiktoken").write_bytes(b"".join(lines))
    manifest, _ = run(source, repository, engine="null")
    end_of_turn = 256 + 2
    for name in TOKENIZER_MODELS:
        folder = repository / name / "1" / "tokenizer"
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.encode("a<|im_end|>").ids == [ord("a"), end_of_turn]
        assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    checkpoint = repository / "tensorrt_llm" / "1" / "checkpoint"
    assert end_of_turn in json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"]
    assert manifest.files["generation_config.json"].size == (checkpoint / "generation_config.json").stat().st_size


def test_somebodys_settings_stay(source: Path, repository: Path) -> None:
    """The embedded engine has none of its own, so no build of it has a reason to write the file again."""
    config = repository / "tensorrt_llm" / "config.pbtxt"
    run(source, repository)
    assert config.read_text() == (ROOT / "model_repository" / "tensorrt_llm" / "config.pbtxt").read_text()
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    edited = config.read_text()
    assert "was changed since the last build and stays as it is" in run(source, repository)[1][0]
    parameter = 'parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" } }'
    config.write_text(f"{edited}{parameter}\n")
    for force in (True, False):
        assert "kv_cache_free_gpu_mem_fraction in config.pbtxt is for" in refusal(source, repository, force=force)
    config.write_text(edited)
    for options in ({"max_batch_size": 3}, {"served_model_name": "other"}, {"force": True}, {"engine": "null"}):
        run(source, repository, **options)
        assert config.read_text() == edited


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/srv/models/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("demo/checkpoint", "demo"),
        ("runs/tiny/checkpoint-500", "tiny"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
    ],
)
def test_served_name(model: str, name: str) -> None:
    assert default_name(model) == name


@pytest.mark.parametrize(
    "arguments",
    [["--name", "a", "--remove", "a"], ["--name", ""], ["--remove", "a", "--force"], ["--remove", "a", "--model", "b"]],
)
def test_contradictory_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_main(arguments)
    assert "error: " in capsys.readouterr().err


def test_command_line(source: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = build_main
    where = ["--model", str(source), "--model-repository", str(repository)]
    assert main([*where, "--max-seq-len", "64", "--no-self-test"]) == 0
    built = load_manifest(repository / "tensorrt_llm" / "1")
    assert (built.max_model_len, built.record["self_test"]) == (64, None)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("build: serve it: ")
    assert last.endswith(f"serve --model-repository {repository}")
    assert main([*where, "--engine", "tensorrt_llm"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    # Under the name that was typed.
    for option in ("--max-seq-len", "--max-model-len"):
        assert main([*where, option, "513"]) == 2
        assert f": {option} 513 is outside" in capsys.readouterr().err


def test_rope_scaling_extends_the_context(source: Path, repository: Path) -> None:
    """By YaRN's recipe, which leaves max_position_embeddings as it was: in the build, in the engine and in the plan."""
    path = source / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    path.write_text(json.dumps(config))
    assert run(source, repository)[0].max_model_len == 2048
    engine = create_engine(repository / "tensorrt_llm" / "1", Recorder(), {"num_threads": "1"})
    engine.close()
    assert engine.info.max_model_len == 2048
    assert "--max-seq-len 2049" in refusal(source, repository, max_model_len=2049)
