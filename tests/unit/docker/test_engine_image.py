"""The image of an engine in a container of its own, replayed: two environments, its command and its health check."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.unit.docker.conftest import ROOT, VLLM
from tests.unit.docker.replay import Image
from tests.unit.docker.test_images import SBOM, listed, packages, start
from tests.waiting import lines_until


def venv(image: Image) -> str:
    return str(image.at("venv/bin/python3"))


def test_the_packages_of_its_base_stay_as_they_are(engine: Image) -> None:
    """Nothing goes there, whatever is pinned; all that the library needs lies in its own environment."""
    found = {name: version for name, version in packages(engine, "python3").items() if not name.startswith("pip")}
    assert VLLM.items() <= found.items()
    assert found.keys() - VLLM.keys() == {"msgspec", "numpy"}
    own = packages(engine, venv(engine))
    assert {"openai-bls", "tritonclient", "tokenizers", "shtab"} <= own.keys()
    assert own["protobuf"] != VLLM["protobuf"]


def test_every_package_is_in_a_bill_of_materials(engine: Image) -> None:
    for name, python in ((SBOM, "python3"), (f"{SBOM}-venv", venv(engine))):
        assert listed(engine, name) == packages(engine, python)
    assert not engine.at("/tmp/sbom").exists()


def test_the_folder_of_the_socket_is_for_its_user_and_group(engine: Image, runtime: Image) -> None:
    """Of both images, for either may be the first in a new volume."""
    for image in (engine, runtime):
        assert image.at("/run/openai_bls").stat().st_mode & 0o7777 == 0o2770


def test_its_command_serves_an_engine_with_the_interpreter_of_its_base(engine: Image) -> None:
    """Here the null engine, which needs no more than every engine does."""
    folder = engine.at("/models/tensorrt_llm/1")
    folder.mkdir(parents=True)
    manifest = {"engine": "null", "model_name": "null", "max_model_len": 9, "max_batch_size": 1, "created": 0}
    (folder / "engine.json").write_text(json.dumps(manifest), encoding="utf-8")
    # A socket's path has a hundred characters at most.
    socket = "engine.sock"
    entry = [engine.mapped(word) for word in engine.metadata["ENTRYPOINT"]]
    command = [engine.mapped(word) for word in engine.metadata["CMD"]]
    command[command.index("--socket") + 1] = socket
    with subprocess.Popen(
        [*entry, *command],
        cwd=engine.at("/run/openai_bls"),
        env=engine.process_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = lines_until(process.stderr, "is ready")
        try:
            pid = int(lines[-1].rpartition("process ")[2].rstrip(")\n"))
            interpreter, script = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:2]
            assert Path(interpreter).parent.parent == engine.root.parent / "python"
            assert Path(script).is_relative_to(engine.at("venv"))
            assert not Path(script).is_relative_to(ROOT)
            kind, *words = engine.metadata["HEALTHCHECK"]
            assert kind == "CMD"
            check = [engine.mapped(word) for word in words]
            check[check.index("--socket") + 1] = socket
            done = subprocess.run(
                check,
                cwd=engine.at("/run/openai_bls"),
                env=engine.process_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
        finally:
            process.terminate()
            process.communicate()
        assert process.returncode == 0


def test_its_other_commands(engine: Image) -> None:
    assert "--engine-python" in start(engine, "build", "--help").stdout
    assert start(engine, "--version").stdout.startswith("openai_bls ")
    assert start(engine, "servr").returncode == 127
