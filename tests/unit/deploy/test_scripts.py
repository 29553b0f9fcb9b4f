"""The scripts that the chart puts into pods, run by a real shell."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.support import CHART, GROUP, pods, render

FILES = CHART / "files"
WAIT_S = 30


def stand_in(folder: Path, name: str, script: str) -> None:
    """A command of this name on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(FILES / script), *arguments],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("path", sorted(FILES.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_posix_shell(path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=WAIT_S)
    assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")


GROUP_VARIABLES = {
    "LWS_LEADER_ADDRESS": "demo-openai-bls-group-0.demo-openai-bls-group.default",
    "LWS_GROUP_SIZE": "3",
    "BACKEND": "cpp",
    "GPUS_PER_NODE": "8",
    "WORKER_TIMEOUT": "1",
    "SOURCE_DIR": "/opt/openai_bls",
}


@pytest.mark.parametrize(
    ("backend", "more"), [("cpp", ()), ("python", ("--launcher", "mpirun", "--gpus-per-node", "8"))]
)
def test_the_leader_starts_all_ranks(backend: str, more: tuple[str, ...], tmp_path: Path) -> None:
    stand_in(tmp_path, "ssh", f'echo "$@" >> {tmp_path}/asked')
    stand_in(tmp_path, "python3", 'printf "%s\\n" "$OMPI_MCA_plm_rsh_agent" "$PRTE_MCA_plm_ssh_agent" "$@"')
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(
        "leader.sh", "--model-repository", "/models/a b", **{**GROUP_VARIABLES, "PATH": path, "BACKEND": backend}
    )
    assert done.stderr == ""
    agent, other_agent, *command = done.stdout.splitlines()
    domain = "demo-openai-bls-group.default"
    hosts = ",".join(f"demo-openai-bls-group-0{worker}.{domain}:8" for worker in ("", "-1", "-2"))
    assert command == [
        "/opt/openai_bls/docker/start.py",
        "serve",
        *("--world-size", "24", "--hosts", hosts),
        *more,
        *("--model-repository", "/models/a b"),
    ]
    assert agent == other_agent == "ssh -F /etc/openai_bls/scripts/ssh_config"
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked == [
        f"-F /etc/openai_bls/scripts/ssh_config demo-openai-bls-group-0-{worker}.{domain} true" for worker in (1, 2)
    ]


def test_the_leader_names_the_worker_that_is_missing(tmp_path: Path) -> None:
    stand_in(tmp_path, "ssh", "exit 255")
    stand_in(tmp_path, "python3", "echo started")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("leader.sh", **{**GROUP_VARIABLES, "PATH": path, "WORKER_TIMEOUT": "0"})
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert done.stderr.startswith("demo-openai-bls-group-0-1.demo-openai-bls-group.default has not answered")


def test_waiting_for_the_engine(tmp_path: Path) -> None:
    """As process 1 of a container, where a signal without a handler has no effect."""
    waiting = subprocess.Popen(
        ["sh", str(FILES / "wait-for-engine.sh")],
        env={"PATH": os.environ["PATH"], "PLACE": str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert waiting.stdout is not None
    assert str(tmp_path).encode() in waiting.stdout.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(WAIT_S) == 143
    # What it sleeps in, if it has come to that.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(waiting.pid, signal.SIGKILL)
    waiting.stdout.close()
    (tmp_path / "tensorrt_llm" / "1").mkdir(parents=True)
    (tmp_path / "tensorrt_llm" / "1" / "engine.json").touch()
    assert run("wait-for-engine.sh", PLACE=str(tmp_path)).returncode == 0


def test_a_session_has_the_environment_of_the_pod(tmp_path: Path) -> None:
    """As worker.sh leaves it, whatever characters it holds."""
    saved = tmp_path / "environment"
    worker = (FILES / "worker.sh").read_text(encoding="utf-8")
    saving = re.search(r"^\(umask 077 && (export -p) > (\S+)\)$", worker, re.MULTILINE)
    assert saving is not None
    session = (FILES / "session.sh").read_text(encoding="utf-8")
    assert f". {saving[2]}\n" in session
    variables = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/a:/b", "ODD": 'it\'s "one" $two\n`three`'}
    subprocess.run(["sh", "-c", f"{saving[1]} > {saved}"], env=variables, check=True, timeout=WAIT_S)
    script = tmp_path / "session.sh"
    script.write_text(session.replace(saving[2], str(saved)), encoding="utf-8")
    command = 'printf "%s|%s" "$LD_LIBRARY_PATH" "$ODD"'
    done = subprocess.run(
        ["sh", str(script)],
        env={"SSH_ORIGINAL_COMMAND": command},
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    assert done.stdout == f"/a:/b|{variables['ODD']}"


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_a_worker_knows_that_its_ranks_run(backend: str, tmp_path: Path) -> None:
    worker = (FILES / "worker.sh").read_text(encoding="utf-8")
    function = re.search(r"^serving\(\) \{.*?^\}", worker, re.MULTILINE | re.DOTALL)
    assert function is not None
    program = tmp_path / ("tritonserver" if backend == "cpp" else "python3")
    program.symlink_to(shutil.which("cat") or "")
    # The rank reads from a pipe until it is closed.
    words = [] if backend == "cpp" else ["-", "mgmn_worker_node"]
    (tmp_path / "mgmn_worker_node").touch()
    rank = subprocess.Popen([program, *words], stdin=subprocess.PIPE, cwd=tmp_path)
    try:
        subprocess.run(["sh", "-c", f"{function[0]}\nserving"], check=True, timeout=WAIT_S)
    finally:
        rank.communicate()


def test_both_ends_of_ssh_agree() -> None:
    server = dict(re.findall(r"^(\w+) (.*)$", (FILES / "sshd_config").read_text(encoding="utf-8"), re.MULTILINE))
    client = dict(re.findall(r"^ +(\w+) (.*)$", (FILES / "ssh_config").read_text(encoding="utf-8"), re.MULTILINE))
    worker = pods(render(GROUP))["worker"]["spec"]
    [container] = worker["containers"]
    assert {server["Port"], client["Port"]} == {str(container["ports"][0]["containerPort"])}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    paths = [server["HostKey"], server["AuthorizedKeysFile"], client["IdentityFile"], client["UserKnownHostsFile"]]
    assert {Path(path).parent for path in paths} == {Path(mounts["ssh"])}
    assert server["ForceCommand"] == f"/bin/sh {mounts['scripts']}/session.sh"
    # Whoever has no key is not let in, and a worker that has another is not trusted.
    assert {server["PasswordAuthentication"], server["KbdInteractiveAuthentication"]} == {"no"}
    assert client["StrictHostKeyChecking"] == "yes"
