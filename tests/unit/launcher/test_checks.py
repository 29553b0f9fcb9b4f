from __future__ import annotations

import contextlib
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.launcher import checks, workspace
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver import command as server
from openai_bls.launcher.tritonserver.command import Server
from openai_bls.launcher.tritonserver.ports import Ports, is_free, lease_ports, local_host
from tests.unit import engine_doubles
from tests.unit.core_support import write_tokenizer
from tests.unit.engine_doubles import double

WHEEL = Server("wheel", Path("/w/tritonserver"), "1")
IMAGE = Server("image", Path("/i/tritonserver"), "1")


def failure(check: Callable[[], object]) -> str:
    """The one line with which `check` refuses."""
    with pytest.raises(LaunchError) as error:
        check()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_numpy_2_is_refused_with_the_wheel() -> None:
    said = failure(lambda: checks.check_numpy(WHEEL, "2.1.0"))
    assert "pip install 'numpy<2'" in said
    assert "2.1.0" in said
    assert checks.check_numpy(IMAGE, "2.1.0") == "numpy 2.1.0"
    assert checks.check_numpy(WHEEL, "1.26.4") == "numpy 1.26.4"


def test_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        # The wheel has a stub for it, and there is no numpy for that.
        patch.setattr(checks, "python_version", lambda: "3.13")
        patch.setattr(server, "python_version", lambda: "3.13")
        said = failure(lambda: checks.check_python(WHEEL))
        assert "Python 3.10 to 3.12, since it needs numpy below 2" in said
        assert "this is 3.13" in said
        assert "make PYTHON=" in said
        patch.setattr(server, "wheel_root", lambda: None)
        patch.setattr(server, "NGC_SERVER", tmp_path / "none")
        patch.setenv("PATH", str(tmp_path))
        assert failure(server.find_server).startswith("no tritonserver: the server of the nvidia-pytriton wheel runs")
    with monkeypatch.context() as patch:
        patch.setattr(checks, "library_folder", lambda: None)
        library = f"libpython{server.python_version()}.so.1.0"
        assert library in failure(lambda: checks.check_python(WHEEL))
    monkeypatch.setattr(checks, "backends_folder", lambda: tmp_path / "my project" / "backends")
    monkeypatch.setattr(checks, "library_folder", lambda: tmp_path)
    said = failure(lambda: checks.check_python(WHEEL))
    assert "space" in said


def test_platform_and_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "aarch64" in failure(checks.check_platform)
    assert "--shm-size" in failure(lambda: checks.check_shm(tmp_path, minimum=2**62))
    assert "not writable" in failure(lambda: checks.check_shm(tmp_path / "none"))


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, text in ((1024, "1024 open files"), (resource.RLIM_INFINITY, "any number of open files")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert checks.check_open_files() == text
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 1024))
    assert " 64 files" in failure(checks.check_open_files)


@pytest.mark.parametrize(
    ("name", "flag", "variable"),
    [
        ("http", "--http-port", "OPENAI_BLS_TRITON_HTTP_PORT"),
        ("grpc", "--grpc-port", "OPENAI_BLS_TRITON_GRPC_PORT"),
        ("metrics", "--metrics-port", "OPENAI_BLS_TRITON_METRICS_PORT"),
        ("openai", "--openai-port", "OPENAI_BLS_HTTP_PORT"),
    ],
)
def test_busy_port_is_named_with_its_settings(name: str, flag: str, variable: str) -> None:
    with lease_ports() as leased, socket.socket() as busy:
        port = getattr(leased, name)
        busy.bind(("127.0.0.1", port))
        busy.listen()
        said = failure(lambda: checks.check_ports(leased))
    assert all(part in said for part in (str(port), flag, variable))


def test_ports() -> None:
    with lease_ports() as ports:
        assert "/v1" in checks.check_ports(ports)
        assert "/v1" not in checks.check_ports(Ports(ports.http, ports.grpc, ports.metrics, 0))
        twice = Ports(ports.http, ports.http, ports.metrics, 0)
        assert "both HTTP and gRPC" in failure(lambda: checks.check_ports(twice))
    assert "between 1 and 65535" in failure(lambda: checks.check_ports(Ports(http=70000)))


def test_leases_share_no_port() -> None:
    with contextlib.ExitStack() as leases:
        ports = [leases.enter_context(lease_ports()) for _ in range(20)]
    assert len({port for each in ports for port in (each.http, each.grpc, each.metrics, each.openai)}) == 80


def test_a_port_shared_by_reuseport_is_not_free() -> None:
    with lease_ports() as leased, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", leased.http))
        other.listen()
        assert not is_free(leased.http)


def test_local_host() -> None:
    assert [local_host(host) for host in ("0.0.0.0", "::", "10.0.0.7")] == ["127.0.0.1", "::1", "10.0.0.7"]


def test_repository(tmp_path: Path) -> None:
    assert "--model-repository" in failure(lambda: checks.check_repository(tmp_path / "none"))
    with pytest.raises(LaunchError, match=str(tmp_path)):
        checks.check_repository(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "README.md").touch()
    assert checks.model_names(tmp_path) == ["a", "b"]
    assert checks.check_repository(tmp_path).startswith("models a, b in ")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_emptied_config(tmp_path: Path, content: str) -> None:
    for name in ("ensemble", "echo"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(content)
    assert f"{tmp_path}/ensemble/config.pbtxt is empty" in failure(lambda: checks.check_repository(tmp_path))
    (tmp_path / "ensemble" / "config.pbtxt").write_text('name: "ensemble"')
    # Triton completes the configuration of a Python model of somebody's own.
    assert checks.check_repository(tmp_path)


@pytest.mark.parametrize(
    ("character", "said"), [(" ", "space"), *((c, repr(c)) for c in "'\"$&;()<>|\\`é漢"), ("\t", "tab")]
)
def test_paths_that_triton_cannot_take(tmp_path: Path, character: str, said: str) -> None:
    repository = tmp_path / f"my{character}models"
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    refused = failure(lambda: checks.check_repository(repository))
    assert "a link to it" in refused
    assert f"has a {said}:" in refused.replace("character ", "")
    link = tmp_path / "link"
    link.symlink_to(repository)
    assert str(link) in checks.check_repository(link)
    # A model's name is part of the path.
    (version / "model.py").touch()
    version.parent.rename(repository / f"e{character}o")
    with pytest.raises(LaunchError, match=re.escape(repr(f"e{character}o"))):
        checks.check_repository(link)


def test_what_bash_leaves_alone_may_be_in_a_path(tmp_path: Path) -> None:
    repository = tmp_path / "a,b:c=d@e%f+g~h#i-j_k.l"
    (repository / "echo").mkdir(parents=True)
    assert checks.check_repository(repository)


def cpp_config(folder: Path, engine: Path, vocabulary: str = "") -> None:
    """A model of the C++ backend, with its manifest and its engine."""
    (folder / "1" / "engine").mkdir(parents=True)
    (folder / "1" / "engine.json").touch()
    write_cpp_config(folder, engine, vocabulary)


def write_cpp_config(folder: Path, engine: Path, vocabulary: str = "") -> None:
    values = {"gpt_model_path": str(engine), "xgrammar_tokenizer_info_path": vocabulary}
    (folder / "config.pbtxt").write_text(
        'backend: "tensorrtllm"\n'
        + "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in values.items())
    )


@pytest.mark.parametrize("name", ["tensorrt_llm", "tensorrt_llm_small"])
def test_a_copied_repository_names_its_old_place(tmp_path: Path, name: str) -> None:
    here, old = tmp_path / "here", tmp_path / "old" / name / "1" / "engine"
    here.mkdir()
    cpp_config(here / "tensorrt_llm", here / "tensorrt_llm" / "1" / "engine")
    if name != "tensorrt_llm":
        cpp_config(here / name, here / name / "1" / "engine")
        (here / "preprocessing_small").mkdir()
    link = tmp_path / "link"
    link.symlink_to(here)
    for repository in (here, link):
        assert checks.check_engine(repository)
    own = here / name / "1" / "engine"
    # Whether the old one is still there or not.
    for _ in range(2):
        write_cpp_config(here / name, old)
        said = failure(lambda: checks.check_engine(here))
        assert f"gpt_model_path in {here / name / 'config.pbtxt'} is {old}, not {own}" in said
        assert f"`openai-bls render --model-repository {here}`" in said
        old.mkdir(parents=True, exist_ok=True)
    (own / "xgrammar_tokenizer_info.json").touch()
    write_cpp_config(here / name, own, str(old / "xgrammar_tokenizer_info.json"))
    with pytest.raises(LaunchError, match="xgrammar_tokenizer_info_path"):
        checks.check_engine(here)
    write_cpp_config(here / name, own, str(link / own.relative_to(here) / "xgrammar_tokenizer_info.json"))
    assert checks.check_engine(here)


def test_an_engine_outside_the_repository_is_fine(tmp_path: Path) -> None:
    cpp_config(tmp_path / "tensorrt_llm", Path("/srv/engines/large"))
    (tmp_path / "tensorrt_llm" / "1" / "engine").rmdir()
    assert checks.check_engine(tmp_path)


def test_a_further_engine_of_the_cpp_backend_needs_no_model_py(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm" / "1").mkdir(parents=True)
    (tmp_path / "tensorrt_llm" / "1" / "engine.json").touch()
    further = tmp_path / "tensorrt_llm_small"
    cpp_config(further, further / "1" / "engine")
    (further / "1" / "engine.json").unlink()
    with pytest.raises(LaunchError, match="--name small"):
        checks.check_engine(tmp_path)


def test_missing_engine(tmp_path: Path) -> None:
    assert checks.check_engine(tmp_path) is None
    version = tmp_path / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    with pytest.raises(LaunchError, match="`openai-bls build --model"):
        checks.check_engine(tmp_path)
    (version / "engine.json").touch()
    # The model of that name holds none.
    (tmp_path / "tensorrt_llm_bls" / "1").mkdir(parents=True)
    (tmp_path / "tensorrt_llm_bls" / "1" / "model.py").touch()
    alone = checks.check_engine(tmp_path)
    assert alone is not None
    version = tmp_path / "tensorrt_llm_small" / "1"
    version.mkdir(parents=True)
    assert checks.check_engine(tmp_path) == alone
    (version / "model.py").touch()
    with pytest.raises(LaunchError, match="--name small"):
        checks.check_engine(tmp_path)
    (version / "engine.json").touch()
    with pytest.raises(LaunchError, match="preprocessing_small"):
        checks.check_engine(tmp_path)
    (tmp_path / "preprocessing_small").mkdir()
    assert checks.check_engine(tmp_path) == f"{alone}, {version.parent}"


def test_an_engine_elsewhere_needs_its_tokenizer_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.update(tmp_path, print)
    assert "no engine" in failure(lambda: checks.check_engine(tmp_path))
    monkeypatch.setenv("OPENAI_BLS_ENGINE_ADDRESS", "unix:/run/engine")
    folders = [f"{model}/1/tokenizer" for model in checks.TOKENIZER_MODELS]
    assert f"copy {', '.join(folders)} from" in failure(lambda: checks.check_engine(tmp_path))
    for folder in folders:
        write_tokenizer(tmp_path / folder)
    assert checks.check_engine(tmp_path) == "engine (at unix:/run/engine)"
    # Another's preprocessing has a tokenizer of its own.
    shutil.rmtree(tmp_path / "preprocessing" / "1" / "tokenizer")
    assert "copy preprocessing/1/tokenizer from" in failure(lambda: checks.check_engine(tmp_path))
    (tmp_path / "preprocessing" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    assert checks.check_engine(tmp_path)


def test_engine_models() -> None:
    names = ["openai_bls", "preprocessing", "preprocessing_a_b", "tensorrt_llm", "tensorrt_llm_a_b", "tensorrt_llm_bls"]
    assert checks.engine_models(names) == ["tensorrt_llm", "tensorrt_llm_a_b"]
    assert checks.engine_models(["echo"]) == []


@pytest.mark.usefixtures("engine_doubles")
def test_an_engine_without_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_dir = tmp_path / "tensorrt_llm" / "1"
    version_dir.mkdir(parents=True)
    write_manifest(version_dir, double())
    assert checks.check_engine(tmp_path)
    monkeypatch.setattr(engine_doubles, "MISSING", ["wings"])
    assert "the double needs wings" in failure(lambda: checks.check_engine(tmp_path))
    # Whatever runs in another interpreter needs nothing of this one.
    write_manifest(version_dir, msgspec.structs.replace(double(), engine_python="/opt/python"))
    assert (checks.check_engine(tmp_path) or "").endswith("(run by /opt/python)")
    write_manifest(version_dir, Manifest("null", "m", 8, 1, 0))
    assert checks.check_engine(tmp_path)


@pytest.mark.usefixtures("engine_doubles")
def test_an_engine_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_dir = tmp_path / "tensorrt_llm" / "1"
    version_dir.mkdir(parents=True)
    write_manifest(version_dir, Manifest("started", "m", 8, 1, 0, engine_python="/nowhere/python"))
    config = tmp_path / "tensorrt_llm" / "config.pbtxt"
    config.write_text('backend: "python"\n')
    assert "/nowhere/python" in failure(lambda: checks.check_engine(tmp_path))
    # The environment's comes first, as at the load.
    with monkeypatch.context() as patch:
        patch.setenv("OPENAI_BLS_ENGINE_PYTHON", sys.executable)
        assert (checks.check_engine(tmp_path) or "").endswith(f"(the double of {sys.executable})")
    config.write_text(
        'backend: "python"\nparameters { key: "engine_address" value { string_value: "unix:/run/engine" } }\n'
    )
    assert (checks.check_engine(tmp_path) or "").endswith("(at unix:/run/engine)")
