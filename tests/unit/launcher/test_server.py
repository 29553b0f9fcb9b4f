from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver import command as server
from openai_bls.launcher.tritonserver.command import Server

WHEEL = Server("wheel", Path("/site/pytriton/tritonserver/bin/tritonserver"), "nvidia-pytriton 1")


def make_wheel(root: Path, versions: tuple[str, ...] = (server.python_version(),)) -> Path:
    backend = root / "backends" / "python"
    backend.mkdir(parents=True)
    (backend / "libtriton_python.so").touch()
    (backend / "triton_python_backend_utils.py").touch()
    for version in versions:
        folder = root / "python_backend_stubs" / version
        folder.mkdir(parents=True)
        (folder / "triton_python_backend_stub").touch(mode=0o644)
    return root


def test_command_adds_what_is_missing() -> None:
    command = server.server_command(WHEEL, ["--model-repository=r"], backends=Path("/b"))
    assert command == [
        str(WHEEL.binary),
        "--model-repository=r",
        "--backend-directory=/b",
        f"--backend-config=python,thread-pool-size={server.DEFAULT_THREAD_POOL_SIZE}",
    ]


@pytest.mark.parametrize(
    "args",
    [
        ["--backend-directory=/mine", "--backend-config=python,thread-pool-size=8"],
        ["--backend-directory", "/mine", "--backend-config", "python,thread-pool-size=8"],
    ],
)
def test_command_leaves_the_users_flags_alone(args: list[str]) -> None:
    assert server.server_command(WHEEL, args, backends=Path("/b")) == [str(WHEEL.binary), *args]


def test_an_image_has_its_own_backends_and_libraries() -> None:
    image = Server("image", Path("/opt/tritonserver/bin/tritonserver"), "24.10")
    command = server.server_command(image, ["--backend-config=python,shm-growth-byte-size=1"])
    assert not server.has_flag(command, "--backend-directory")
    assert server.has_backend_setting(command, "thread-pool-size")
    assert "LD_LIBRARY_PATH" not in server.server_environment(image, {"PATH": "/usr/bin"})


def test_thread_pool_size_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server.THREAD_POOL_VARIABLE, "33")
    assert server.server_command(WHEEL, [])[-1].endswith("thread-pool-size=33")


def test_environment_puts_this_python_first() -> None:
    base = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/cuda", "OTHER": "1"}
    environment = server.server_environment(WHEEL, base)
    folders = environment["PATH"].split(os.pathsep)
    assert folders == [str(Path(sys.executable).parent), "/usr/bin"]
    libraries = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert libraries[-2:] == ["/site/nvidia_pytriton.libs", "/cuda"]
    assert environment["OTHER"] == "1"
    assert server.server_environment(WHEEL, environment) == environment


def test_backends_are_assembled_from_many_threads(tmp_path: Path) -> None:
    root = make_wheel(tmp_path / "wheel")
    with ThreadPoolExecutor(8) as pool:
        # An error of a thread is raised here.
        list(pool.map(lambda _: server.assemble_backends(root, tmp_path / "backends"), range(8)))
    names = {path.name for path in (tmp_path / "backends" / "python").iterdir()}
    assert names == {"libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"}
    stub = tmp_path / "backends" / "python" / "triton_python_backend_stub"
    assert os.access(stub, os.X_OK)


def test_backends_follow_a_moved_wheel(tmp_path: Path) -> None:
    target = tmp_path / "backends"
    server.assemble_backends(make_wheel(tmp_path / "old"), target)
    new = make_wheel(tmp_path / "new")
    server.assemble_backends(new, target)
    assert (target / "python" / "libtriton_python.so").resolve().is_relative_to(new)


def test_missing_stub_is_named(tmp_path: Path) -> None:
    root = make_wheel(tmp_path / "wheel", versions=("3.8", "3.10", "3.9"))
    (root / "python_backend_stubs" / server.python_version()).mkdir(exist_ok=True)
    if server.python_version() == "3.10":
        pytest.skip("this Python has a stub here")
    with pytest.raises(LaunchError, match=r"stub for Python .* 3\.8 to 3\.10"):
        server.assemble_backends(root, tmp_path / "backends")


def test_shim_runs_this_python_and_spares_another_server(tmp_path: Path) -> None:
    shim = server.install_shim(tmp_path / "tritonserver")
    assert server.is_shim(shim)
    assert os.access(shim, os.X_OK)
    assert sys.executable in shim.read_text()
    assert server.install_shim(shim) == shim
    shim.write_bytes(b"\x7fELF")
    with pytest.raises(LaunchError, match="another tritonserver"):
        server.install_shim(shim)
    assert shim.read_bytes() == b"\x7fELF"


def test_search_prefers_a_server_on_path_but_not_the_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "NGC_SERVER", tmp_path / "missing")
    shims, real = tmp_path / "shims", tmp_path / "real"
    for folder in (shims, real):
        folder.mkdir()
    server.install_shim(shims / "tritonserver")
    monkeypatch.setenv("PATH", str(shims))
    assert server.find_server().kind == "wheel"
    (real / "tritonserver").write_text("#!/bin/sh\n")
    (real / "tritonserver").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{real}")
    assert server.find_server().binary == real / "tritonserver"


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "NGC_SERVER", tmp_path / "missing")
    monkeypatch.setattr(server, "wheel_root", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="pip install"):
        server.find_server()
