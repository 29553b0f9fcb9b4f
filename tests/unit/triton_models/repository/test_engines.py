from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.core.settings import SettingsError
from openai_bls.triton_models.repository.engines import (
    Backend,
    backends,
    excludes_input,
    openai_bls_settings,
    served_names,
    triton_keys,
)
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import OPENAI_BLS, TENSORRT_LLM

CPP_BACKEND = """backend: "tensorrtllm"
parameters { key: "gpt_model_path" value { string_value: "/engine" } }
"""


def found(openai_bls_dir: Path) -> list[Backend]:
    args = {"model_repository": str(openai_bls_dir), "model_name": "openai_bls", "model_version": "1"}
    return backends(ModelFolders(args, os.getpid()), openai_bls_dir, "1")


def engine(repository: Path, name: str, *, manifest: str = "engine.json", version: str = "1") -> None:
    folder = repository / name / version
    folder.mkdir(parents=True)
    (folder / manifest).touch()


def test_the_default_engine_comes_first_and_need_not_be_there(tmp_path: Path) -> None:
    model = tmp_path / "openai_bls"
    default = Backend(
        "tensorrt_llm",
        "preprocessing",
        model / "1" / "tokenizer",
        tmp_path / "tensorrt_llm",
        preprocessing_dir=tmp_path / "preprocessing",
    )
    assert found(model) == [default]
    engine(tmp_path, "tensorrt_llm")
    # Of two versions it is one engine.
    engine(tmp_path, "tensorrt_llm_small")
    engine(tmp_path, "tensorrt_llm_small", version="2")
    engine(tmp_path, "tensorrt_llm_a_b")
    # The model of that name, and what is no engine.
    engine(tmp_path, "tensorrt_llm_bls", manifest="model.py")
    engine(tmp_path, "other_engine")
    assert found(model) == [
        default,
        *(
            Backend(
                f"tensorrt_llm_{name}",
                f"preprocessing_{name}",
                model / "1" / f"tokenizer_{name}",
                tmp_path / f"tensorrt_llm_{name}",
                preprocessing_dir=tmp_path / f"preprocessing_{name}",
            )
            for name in ("a_b", "small")
        ),
    ]


@pytest.mark.parametrize(
    ("config", "transport"),
    [
        (CPP_BACKEND, "grpc"),
        (render(TENSORRT_LLM), "exchange"),
        ('# backend: "tensorrtllm"\nbackend: "python"', "exchange"),
        ("backend: 'tensorrt' 'llm' # of theirs", "grpc"),
        ('name: "backend: \\"tensorrtllm\\""', "exchange"),
        ("", "exchange"),
        ("backend: {", "exchange"),
    ],
)
def test_the_door_goes_by_the_backend(tmp_path: Path, config: str, transport: str) -> None:
    engine(tmp_path, "tensorrt_llm")
    assert [backend.transport for backend in found(tmp_path / "openai_bls")] == ["exchange"]
    (tmp_path / "tensorrt_llm" / "config.pbtxt").write_text(config)
    assert [backend.transport for backend in found(tmp_path / "openai_bls")] == [transport]


OURS = (Path(__file__).parents[4] / "model_repository" / "preprocessing" / "1" / "model.py").read_text(encoding="utf-8")
THEIRS = "class TritonPythonModel: ..."


@pytest.mark.parametrize(
    ("files", "transport"),
    [
        ({}, "exchange"),
        ({"config.pbtxt": "", "1/model.py": OURS}, "exchange"),
        ({"config.pbtxt": "", "1/model.py": THEIRS}, "bls"),
        # Triton loads the newest version.
        ({"9/model.py": THEIRS, "10/model.py": OURS, "old/model.py": THEIRS}, "exchange"),
        ({"1/model.py": OURS, "2/model.py": THEIRS}, "bls"),
        ({"config.pbtxt": 'backend: "python"'}, "exchange"),
        ({"config.pbtxt": 'backend: "mine"'}, "bls"),
        ({"config.pbtxt": 'platform: "ensemble"'}, "bls"),
        ({"config.pbtxt": "backend {"}, "exchange"),
    ],
)
def test_a_preprocessing_that_is_not_ours_is_called_by_bls(
    tmp_path: Path, files: dict[str, str], transport: str
) -> None:
    for name, text in files.items():
        path = tmp_path / "preprocessing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert [backend.prompt_transport for backend in found(tmp_path / "openai_bls")] == [transport]


def named(repository: Path, name: str, served_as: str, version: str = "1") -> None:
    folder = repository / name / version
    folder.mkdir(parents=True)
    write_manifest(folder, Manifest("null", served_as, 1, 1, 0))


def test_served_names(tmp_path: Path) -> None:
    assert served_names(tmp_path) == {"tensorrt_llm": ["openai_bls"]}
    named(tmp_path, "tensorrt_llm_small", "little")
    named(tmp_path, "tensorrt_llm_small", "less", version="2")
    assert served_names(tmp_path) == {"tensorrt_llm": ["openai_bls"], "tensorrt_llm_small": ["little", "less"]}
    named(tmp_path, "tensorrt_llm", "big")
    engine(tmp_path, "tensorrt_llm_unreadable")
    assert served_names(tmp_path) == {
        "tensorrt_llm": ["openai_bls", "big"],
        "tensorrt_llm_small": ["little", "less"],
        "tensorrt_llm_unreadable": [],
    }


@pytest.mark.parametrize(("text", "aliases"), [("gpt-4, big", ["gpt-4", "big"]), ("", [])])
def test_aliases_are_the_configured_ones(tmp_path: Path, text: str, aliases: list[str]) -> None:
    (tmp_path / "openai_bls").mkdir()
    config = render(msgspec.structs.replace(OPENAI_BLS, parameters={"model_aliases": text}))
    (tmp_path / "openai_bls" / "config.pbtxt").write_text(config)
    assert served_names(tmp_path) == {"tensorrt_llm": aliases}
    # As Triton's own documentation writes it, over several lines.
    spread = config.replace("parameters { key:", "parameters: {\n  key:").replace("value {", "\n  value: {\n ")
    assert spread != config
    (tmp_path / "openai_bls" / "config.pbtxt").write_text(spread)
    assert served_names(tmp_path) == {"tensorrt_llm": aliases}


def test_a_setting_that_the_models_around_an_engine_share(tmp_path: Path) -> None:
    """As the engine reads it: from its config.pbtxt, overridden by the environment."""
    engine(tmp_path, "tensorrt_llm")
    config = tmp_path / "tensorrt_llm" / "config.pbtxt"

    def excluded(text: str | None, environ: dict[str, str]) -> bool:
        if text is not None:
            config.write_text(text)
        return excludes_input(found(tmp_path / "openai_bls")[0], environ)

    assert excluded(None, {})
    assert excluded(render(TENSORRT_LLM), {})
    kept = msgspec.structs.replace(TENSORRT_LLM, parameters={"exclude_input_in_output": "false"})
    assert not excluded(render(kept), {})
    assert excluded(None, {"OPENAI_BLS_EXCLUDE_INPUT_IN_OUTPUT": "true"})
    with pytest.raises(SettingsError, match="exclude_input_in_output"):
        excluded(render(msgspec.structs.replace(kept, parameters={"exclude_input_in_output": "maybe"})), {})
    with pytest.raises(SettingsError, match=r"C\+\+ backend.*openai-bls render"):
        excluded(CPP_BACKEND, {})


def test_keys_of_the_models_beside_openai_bls(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: a1\n")
    config = render(msgspec.structs.replace(OPENAI_BLS, parameters={"api_keys_file": str(tmp_path / "keys")}))
    (tmp_path / "config.pbtxt").write_text(config)

    def found(environ: dict[str, str]) -> ApiKeys:
        return triton_keys(openai_bls_settings(tmp_path, environ))

    assert found({}).check("a1", "") == "alice"
    assert found({"OPENAI_BLS_API_KEY": "k"}).check("k", "") == ""
    assert not found({"OPENAI_BLS_TRITON_REQUIRES_KEY": "false"}).required
    (tmp_path / "keys").unlink()
    with pytest.raises(ValueError, match=os.strerror(errno.ENOENT)):
        found({})
