from __future__ import annotations

import errno
import http.server
import json
import os
import shlex
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from openai_bls.commands import main as cli
from openai_bls.commands.serve import serve_options
from openai_bls.launcher import checks, readiness, workspace
from openai_bls.launcher.checks import with_tls
from openai_bls.launcher.console import Console
from openai_bls.launcher.doctor import doctor, examine
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import expected_models, get, not_ready, served_models
from openai_bls.launcher.serving import exposure
from openai_bls.launcher.serving import plan as serve_plan
from openai_bls.launcher.serving.examples import examples
from openai_bls.launcher.serving.options import ServeOptions
from openai_bls.launcher.serving.plan import triton_flags
from openai_bls.launcher.serving.serve import make_log
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.triton_models.repository.render_configs import configure
from tests.certificates import Authority

PORTS = Ports(1, 2, 3, 4)


def capture(*argv: str) -> ServeOptions:
    return serve_options(cli.parse("serve", argv))


def test_a_log_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log"):
        with pytest.raises(LaunchError, match=f"--log-file {path} "):
            make_log(ServeOptions(log_file=path, extra=[]))


def test_serve_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PORT", "HTTP_HOST", "TRITON_HTTP_PORT", "MODEL_REPOSITORY"):
        monkeypatch.delenv(f"OPENAI_BLS_{name}", raising=False)
    assert capture() == ServeOptions(extra=[])


def test_serve_reads_flags_environment_and_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BLS_HTTP_PORT", "9100")
    monkeypatch.setenv("OPENAI_BLS_TRITON_GRPC_PORT", "9200")
    options = capture("--grpc-port", "9300", "--", "--log-verbose=1", "--", "x")
    assert options.ports == Ports(8000, 9300, 8002, 9100)
    assert options.extra == ["--log-verbose=1", "--", "x"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--world-size", "two"], "invalid int value"),
        (["--mode", "follower"], "invalid choice"),
        (["--tensorrt_llm_model_name", "a,,b"], "'a,,b'"),
        ([], "--openai-port: 'nine' (OPENAI_BLS_HTTP_PORT)"),
    ],
)
def test_bad_options(
    argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not argv:
        monkeypatch.setenv("OPENAI_BLS_HTTP_PORT", "nine")
    with pytest.raises(SystemExit):
        cli.main(["serve", *argv])
    assert message in capsys.readouterr().err


def run_dry(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The lines that `serve --dry-run` prints."""
    assert cli.main(["serve", "--dry-run", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_dry_run_prints_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a model").mkdir()
    monkeypatch.delenv("OPENAI_BLS_HTTP_PORT", raising=False)
    *changes, command = run_dry(capsys, "--model-repository", str(tmp_path), "--openai-port", "9100", "--host", "::")
    assert "export OPENAI_BLS_HTTP_PORT=9100" in changes
    assert "export OPENAI_BLS_HTTP_HOST=::" in changes
    words = shlex.split(command)
    assert words[0].endswith("tritonserver")
    assert words[1:8] == [
        f"--model-repository={tmp_path}",
        *("--http-port=8000", "--grpc-port=8001", "--metrics-port=8002"),
        *(f"--{name}-address=::" for name in ("http", "grpc", "metrics")),
    ]
    assert "--exit-timeout-secs=30" in words
    assert words[-1] == "--backend-config=python,shm-region-prefix-name=openai_bls_"


def test_dry_run_before_anything_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The build that comes first, then the server, as a script of one; and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("OPENAI_BLS_MODEL_REPOSITORY", raising=False)
    *lines, command = run_dry(capsys, "--dtype", "float16", "--api-key", "secret", "--host", "0.0.0.0")
    repository = workspace.own_workspace(os.environ)
    build = next(line for line in lines if not line.startswith("#"))
    demo = str(workspace.demo_checkpoint())
    assert shlex.split(build) == [
        *("openai-bls", "build", "--model", demo, "--model-repository", str(repository), "--dtype=float16")
    ]
    assert "export OPENAI_BLS_API_KEY=secret" in lines
    words = shlex.split(command)
    assert f"--model-repository={repository}" in words
    # A key keeps what asks for none on loopback.
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=0.0.0.0"} <= set(words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "./no-such-folder"], "no-such-folder"),
        (["--model-repository", "none"], "model repository at none"),
        (["--model-repository", "unbuilt"], "unbuilt/tensorrt_llm/1"),
        (["--model-repository", "fine", "--http-port", "9000", "--openai-port", "9000"], "port 9000 "),
        (["--model-repository", "fine", "--http-port", "70000"], "--http-port 70000 "),
        (["--model-repository", "fine", "--ssl-certfile", "none.pem"], "none.pem"),
        (["--model-repository", "fine", "--log-file", "fine"], "--log-file fine "),
        (["--model-repository", "fine", "--log-file", "file/a/b"], "--log-file file/a/b "),
        (["--model-repository", "fine", "--with", "none"], "--with none: "),
        (["--model", "unbuilt", "--revision", "main"], "--revision "),
    ],
)
def test_a_dry_run_refuses_what_a_start_refuses(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("OPENAI_BLS_MODEL_REPOSITORY", raising=False)
    (tmp_path / "fine" / "openai_bls").mkdir(parents=True)
    (tmp_path / "fine" / "openai_bls" / "config.pbtxt").write_text('name: "openai_bls"\n')
    (tmp_path / "unbuilt" / "tensorrt_llm" / "1").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert cli.main(["serve", "--dry-run", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_dry_run_says_which_ports_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = run_dry(capsys, "--model-repository", str(tmp_path), "--http-port", str(port))
    assert f"# port {port} is taken just now" in lines


@pytest.mark.parametrize(
    ("host", "environ", "said"),
    [
        (
            "127.0.0.1",
            {},
            "open: /v1 to this machine, without a key; Triton's HTTP and gRPC to this machine, without a key;",
        ),
        ("0.0.0.0", {}, "WARNING: open: /v1 to whoever reaches 0.0.0.0, without a key; "),
        (
            "0.0.0.0",
            {"API_KEY": "k"},
            "open: /v1 to whoever reaches 0.0.0.0 with a key; Triton's HTTP and gRPC to this machine "
            "with a key (mine without one); metrics to whoever reaches 0.0.0.0, without a key",
        ),
        (
            "0.0.0.0",
            {"API_KEY": "k", "TRITON_REQUIRES_KEY": "false"},
            "open: /v1 to whoever reaches 0.0.0.0 with a key; Triton's HTTP and gRPC to whoever reaches 0.0.0.0,",
        ),
    ],
)
def test_what_is_open_to_whom(tmp_path: Path, host: str, environ: dict[str, str], said: str) -> None:
    workspace.update(tmp_path, lambda _: None)
    (tmp_path / "mine" / "1").mkdir(parents=True)
    names = expected_models(tmp_path)
    given = {f"OPENAI_BLS_{name}": value for name, value in environ.items()}
    options = exposure.closed(ServeOptions(repository=tmp_path, host=host), given)
    keyless = exposure.without_keys(tmp_path, names)
    assert keyless == ["mine"]
    assert exposure.sentence(options, given, names, keyless).startswith(said)
    # Who says where the ports are has them there.
    named = exposure.closed(ServeOptions(repository=tmp_path, host=host, triton_host="10.0.0.1"), given)
    assert named.triton_address == "10.0.0.1"


def test_the_address_of_v1_is_the_configs_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "check_some_engine", lambda _: [])
    for variable in ("OPENAI_BLS_HTTP_PORT", "OPENAI_BLS_HTTP_HOST"):
        monkeypatch.delenv(variable, raising=False)
    configure(tmp_path, ["openai_bls.http_port=9200", "openai_bls.http_host=0.0.0.0"])
    where = ("--model-repository", str(tmp_path))
    changes = run_dry(capsys, *where)
    assert "export OPENAI_BLS_HTTP_PORT=9200" in changes
    assert "export OPENAI_BLS_HTTP_HOST=0.0.0.0" in changes
    changes = run_dry(capsys, *where, "--openai-port", "9300", "--host", "::1")
    assert "export OPENAI_BLS_HTTP_PORT=9300" in changes
    assert "export OPENAI_BLS_HTTP_HOST=::1" in changes
    monkeypatch.setenv("OPENAI_BLS_HTTP_PORT", "9400")
    # It is in the environment already.
    assert not any("OPENAI_BLS_HTTP_PORT" in change for change in run_dry(capsys, *where))


def test_models_are_loaded_again_where_there_are_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "check_some_engine", lambda _: [])
    (tmp_path / "tensorrt_llm").mkdir()
    where = ("--model-repository", str(tmp_path))
    control = "--model-control-mode=explicit"
    assert control in run_dry(capsys, *where)[-1]
    assert control not in run_dry(capsys, *where, "--restarts", "0")[-1]
    assert control not in run_dry(capsys, *where, "--", "--model-control-mode=none")[-1]
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        cli.main(["serve", "--restarts", "-1"])
    assert "'-1'" in capsys.readouterr().err


def test_a_new_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "alice"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("alice: sha256:")
    assert said.err.startswith("sk-")
    assert said.err.strip() not in said.out
    assert cli.main(["key", "two words"]) == 2
    assert "'two words'" in capsys.readouterr().err


def test_further_repositories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = capture("--with", "mine", "--with", "examples")
    assert triton_flags(options)[:3] == [
        "--model-repository=model_repository",
        "--model-repository=mine",
        "--model-repository=examples",
    ]
    monkeypatch.undo()
    (tmp_path / "repository" / "m" / "1").mkdir(parents=True)
    where = ("--model-repository", str(tmp_path / "repository"))
    (tmp_path / "mine").mkdir()
    assert cli.main(["serve", "--dry-run", *where, "--with", str(tmp_path / "mine")]) == 2
    assert "there are no models" in capsys.readouterr().err
    (tmp_path / "mine" / "config.pbtxt").touch()
    assert cli.main(["serve", "--dry-run", *where, "--with", str(tmp_path / "mine")]) == 2
    assert "--with" in capsys.readouterr().err


def test_v1_alone_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--model-repository", str(tmp_path), "--host", "0.0.0.0")
    (tmp_path / "a").mkdir()
    monkeypatch.delenv("OPENAI_BLS_HTTP_HOST", raising=False)
    for given in ([], ["--triton-host", "127.0.0.1"]):
        if not given:
            monkeypatch.setenv("OPENAI_BLS_TRITON_HOST", "127.0.0.1")
        *changes, command = run_dry(capsys, *where, *given)
        monkeypatch.delenv("OPENAI_BLS_TRITON_HOST", raising=False)
        assert "export OPENAI_BLS_HTTP_HOST=0.0.0.0" in changes
        assert {f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")} < set(shlex.split(command))
    text = examples("10.0.0.1", PORTS, ["openai_bls"], "demo", "127.0.0.1")
    assert "http://127.0.0.1:1/v2" in text
    assert "http://10.0.0.1:4/v1" in text


def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="--triton-host"):
        triton_flags(ServeOptions(extra=["--http-address", "::"]))
    assert cli.main(["serve", "--model-repository", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_expected_models(tmp_path: Path) -> None:
    own, further = tmp_path / "own", tmp_path / "further"
    for folder in (own / "a", own / "b", further / "a_guard"):
        folder.mkdir(parents=True)
    explicit = ["--model-control-mode=explicit"]
    assert expected_models(own) == ["a", "b"]
    assert expected_models(own, explicit) == []
    assert expected_models(own, [*explicit, "--load-model=b"]) == ["b"]
    assert expected_models(own, [*explicit, "--load-model", "*"]) == ["a", "b"]
    assert expected_models(own, [], [further]) == ["a", "b", "a_guard"]
    assert expected_models(own, [*explicit, "--load-model=a_guard"], [further]) == ["a_guard"]


def test_nothing_listens() -> None:
    assert get("127.0.0.1", 1, "/") is None
    assert not_ready("127.0.0.1", PORTS, ["a"], openai=True) == ["tritonserver"]


class ModelsPage(http.server.BaseHTTPRequestHandler):
    """Answers with one page of `pages` after the other, the last one for ever."""

    pages: list[tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def models_port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ModelsPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def models_page(*cards: tuple[str, str, str | None]) -> tuple[int, bytes]:
    """Cards: id, root, parent."""
    data = [
        {
            "id": name,
            "root": root,
            "parent": parent,
            "task": "embeddings" if name.startswith("embed") else "generate",
            "max_model_len": 9,
        }
        for name, root, parent in cards
    ]
    data.append({"id": "vectors", "root": "vectors", "parent": None, "task": "embeddings", "max_model_len": None})
    return 200, json.dumps({"data": data}).encode()


def test_the_names_that_are_served(models_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ("demo", "demo", None), ("openai_bls", "demo", None), ("poet", "demo", "demo")
    second = ("small", "small", None)
    ModelsPage.pages = [models_page(*first), models_page(*first), models_page(*first[:2], second, first[2])]
    assert served_models("127.0.0.1", Ports(openai=models_port)) == ["demo", "openai_bls", "poet"]
    # The second engine is waited for.
    assert served_models("127.0.0.1", Ports(openai=models_port), 2) == ["demo", "openai_bls", "small", "poet"]
    # One that embeds is waited for, too, and is no model to begin with.
    ModelsPage.pages = [models_page(first[0]), models_page(first[0], ("embedder", "embedder", None))]
    assert served_models("127.0.0.1", Ports(openai=models_port), 2) == ["demo"]
    assert len(ModelsPage.pages) == 1
    ModelsPage.pages = [(401, b"")]
    assert served_models("127.0.0.1", Ports(openai=models_port), 2) == []
    # One that does not come is not waited for long.
    monkeypatch.setattr(readiness, "LISTING_SECONDS", 0)
    ModelsPage.pages = [models_page(("demo", "demo", None))]
    assert served_models("127.0.0.1", Ports(openai=models_port), 2) == ["demo"]


def test_examples_with_a_key_run_in_a_shell(tmp_path: Path) -> None:
    """Each curl gets the key of the environment, and JSON that is one."""
    text = "\n\n".join(
        examples("127.0.0.1", PORTS, names, "demo", keys=True) for names in (["ensemble"], ["openai_bls", "ensemble"])
    )
    (tmp_path / "curl").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >&2\n')
    (tmp_path / "curl").chmod(0o755)
    shell = "\n\n".join(part for part in text.split("\n\n") if "Python" not in part)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OPENAI_BLS_API_KEY": "k"}
    said = subprocess.run(["sh", "-c", shell], env=environ, capture_output=True, text=True, check=False).stderr
    bodies = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [body.get("api_key") for body in bodies] == ["k", None, "k"]
    assert "authorization: Bearer k" in said


@pytest.mark.parametrize("keys", [False, True])
def test_the_program_of_the_examples_runs(
    keys: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, with nothing of its own imports left out."""
    monkeypatch.setenv("OPENAI_BLS_API_KEY", "k")
    client = MagicMock()
    client.return_value.chat.completions.create.return_value.choices[0].message.content = "Paris."
    monkeypatch.setattr("openai.OpenAI", client)
    text = examples("127.0.0.1", PORTS, ["openai_bls"], 'a "model" é', keys=keys)
    (program,) = (part for part in text.split("\n\n") if "Python" in part)
    exec(program, {})
    assert capsys.readouterr().out == "Paris.\n"
    client.assert_called_once_with(base_url="http://127.0.0.1:4/v1", api_key="k" if keys else "none")
    assert client.return_value.chat.completions.create.call_args.kwargs["model"] == 'a "model" é'


def test_examples_follow_the_repository() -> None:
    assert examples("127.0.0.1", PORTS, ["echo"], "") == ""
    text = examples("0.0.0.0", PORTS, ["ensemble", "openai_bls"], "demo")
    command = next(part for part in text.split("\n\n") if "generate_stream" in part)
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    body = json.loads(words[words.index("-d") + 1])
    assert json.loads(body["messages"])[0]["role"] == "user"
    for part in (
        "http://127.0.0.1:1/v2/models/openai_bls/generate_stream",
        "http://127.0.0.1:4/v1/chat/completions",
        'OpenAI(base_url="http://127.0.0.1:4/v1"',
    ):
        assert part in text
    off = examples("127.0.0.1", Ports(openai=0), ["openai_bls"], "demo")
    assert "/v1" not in off


def test_doctor_goes_on_after_a_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    assert doctor(Console(), examine(tmp_path, Ports(http=70000), "127.0.0.1")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("FAIL") and "there is no engine" in line]
    # What else is to look at is the machine's.
    assert lines[-1].partition(",")[0] == "2 failed"


# --- HTTPS ---


def test_serve_hands_the_certificate_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = capture("--ssl-certfile", "a.crt", "--ssl-keyfile", "/b.key", "--ssl-ca-certs", "c.pem")
    (tmp_path / "openai_bls").mkdir()
    (tmp_path / "openai_bls" / "config.pbtxt").write_text('name: "openai_bls"\n')
    monkeypatch.setattr(checks, "check_repository", lambda repository: "")
    monkeypatch.setattr(serve_plan, "prepare", lambda flags: (None, ["tritonserver"], {}))
    environment = serve_plan.plan(replace(options, repository=tmp_path)).environment
    assert {name: value for name, value in environment.items() if "_SSL_" in name} == {
        "OPENAI_BLS_SSL_CERTFILE": str(tmp_path / "a.crt"),
        "OPENAI_BLS_SSL_KEYFILE": "/b.key",
        "OPENAI_BLS_SSL_CA_CERTS": str(tmp_path / "c.pem"),
    }


def test_a_certificate_is_looked_at_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "openai_bls").mkdir()
    (tmp_path / "openai_bls" / "config.pbtxt").write_text('name: "openai_bls"\n')
    settings = {f"OPENAI_BLS_{name.upper()}": path for name, path in Authority(tmp_path).settings().items()}
    assert with_tls(PORTS, tmp_path, settings) == replace(PORTS, tls=True)
    wanting = {**settings, "OPENAI_BLS_SSL_CA_CERTS": str(Authority(tmp_path, "clients").file)}
    assert with_tls(PORTS, tmp_path, wanting) == replace(PORTS, tls=True, client_certificates=True)
    assert with_tls(PORTS, tmp_path, {}) == PORTS
    with pytest.raises(LaunchError, match=f"HTTPS .*/no/file .*{os.strerror(errno.ENOENT)}"):
        with_tls(PORTS, tmp_path, {**settings, "OPENAI_BLS_SSL_KEYFILE": "/no/file"})


def test_addresses_over_https() -> None:
    ports = Ports(openai=9443, tls=True)
    assert ports.openai_root("0.0.0.0") == "https://127.0.0.1:9443"
    assert replace(ports, tls=False).openai_root("::") == "http://[::1]:9443"
    text = examples("0.0.0.0", ports, ["openai_bls"], "m")
    assert "https://127.0.0.1:9443/v1/chat/completions" in text
    assert "http://127.0.0.1:8000/v2" in text
    assert "--cacert FILE" in text
    assert "--cert FILE" not in text
    text = examples("0.0.0.0", replace(ports, client_certificates=True), ["openai_bls"], "m")
    assert "--cert FILE --key FILE" in text


def test_readiness_over_https(tmp_path: Path) -> None:
    """By whatever certificate: it is of the public name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue())
    ModelsPage.pages = [models_page(("demo", "demo", None))]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ModelsPage) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        ports = Ports(openai=server.server_port, tls=True)
        try:
            assert served_models("127.0.0.1", ports) == ["demo"]
            assert get("127.0.0.1", ports.openai, "/") is None
        finally:
            server.shutdown()
            thread.join()
