"""The main program: the table, what it takes for --help, and how a command ends."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from openai_bls import __version__
from openai_bls.builder.engine_build import engine_build, engine_builds
from openai_bls.commands import main as cli
from openai_bls.commands.building import options as build_options
from openai_bls.commands.building import within_serve
from openai_bls.commands.completion import SHELLS
from openai_bls.commands.table import COMMANDS
from openai_bls.core.manifest import EngineLoadError
from openai_bls.launcher.doctor import Report

HEAVY = {"msgspec", "numpy", "torch", "transformers", "starlette", "grpc", "logging", "openai_bls.core.settings"}


def program(*words: str, code: str = "") -> list[str]:
    """`openai-bls`, after `code` in the same process."""
    run = f"{code}\nimport sys; from openai_bls.commands.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", run, *words]


def run(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(*words, code=code), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["serv"]])
def test_without_a_command_nothing_else_is_imported(words: Sequence[str]) -> None:
    code = "import atexit, json, sys; atexit.register(lambda: print(json.dumps([*sys.modules])))"
    done = run(*words, code=code)
    assert not HEAVY & set(json.loads(done.stdout.splitlines()[-1]))
    assert done.returncode == (2 if words == ["serv"] else 0)


def test_every_command_has_options_and_help() -> None:
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    described = cli.build_parser(complete=True).format_help()
    for command in COMMANDS:
        assert command.name in described
        module = command.load()
        assert callable(module.run)


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: openai-bls {name}")


def test_python_m_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openai_bls", "serve", "--speed"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        "openai-bls serve: error: there is no option --speed: `openai-bls serve --help` has the options\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serv"], "openai-bls: error: there is no command 'serv': did you mean serve?"),
        (["serve", "--quantt", "fp8"], "openai-bls serve: error: there is no option --quantt: did you mean --quant?"),
        (["serve", "--modle", "m"], "openai-bls serve: error: there is no option --modle: did you mean --model?"),
        (["smoke", "--concurrency=1"], "there is no option --concurrency: `openai-bls run-batch` has it"),
        (["serve", "Qwen/Qwen2.5-0.5B"], "unrecognized arguments: Qwen/Qwen2.5-0.5B (a model is --model NAME)"),
        (
            ["serve", "--tensor-parallel-size", "2"],
            "--tensor-parallel-size is an option of another server; give --tp-size",
        ),
    ],
)
def test_what_nobody_knows_names_the_nearest(
    words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


@pytest.mark.parametrize("name", ["serve", "build"])
def test_a_plug_in_that_cannot_be_imported_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one whose distribution is removed by half."""

    def broken() -> None:
        raise EngineLoadError("the engine toy of openai_bls_toy cannot be imported")

    monkeypatch.setattr(build_options, "engine_builds", broken)
    assert cli.main([name]) == 2
    said = capsys.readouterr().err
    assert said == f"openai-bls {name}: error: the engine toy of openai_bls_toy cannot be imported\n"


@pytest.mark.parametrize("engine", engine_builds())
def test_an_engine_that_is_installed_alone_has_the_options_that_it_takes(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = engine_build(engine)
    monkeypatch.setattr(build_options, "engine_builds", lambda: {engine: build})
    parser = argparse.ArgumentParser()
    build_options.add_arguments(parser)
    assert build.accepts <= {action.dest for action in parser._actions}


def test_serve_says_that_it_works_before_it_imports_anything() -> None:
    """The imports take seconds the first time."""
    broken = "import sys; sys.modules['openai_bls.commands.serve'] = None"
    assert "looking at the machine" in run("serve", code=broken).stdout
    assert run("serve", "--dry-run", code=broken).stdout == ""


def test_serve_takes_the_options_of_a_build() -> None:
    """Each is handed on as it was given, whatever its kind."""
    given = [
        *("--max-model-len", "4096", "--dtype", "float16", "--quant=fp8", "--served-model-name", "mine"),
        *("--lora-dir", "a=b", "--lora-dir", "c", "--trust-remote-code", "--no-self-test", "--gather-logits"),
        *("--multiple-profiles=disable", "--no-enable-kv-cache-reuse"),
    ]
    words = within_serve.words(cli.parse("serve", given))
    build = argparse.ArgumentParser()
    build_options.add_arguments(build)
    assert build.parse_args(words) == build.parse_args(given)
    assert within_serve.words(cli.parse("serve", ["--engine", "vllm", "--model", "m"])) == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["doctor"], 128 + signal.SIGPIPE),
        (["completion", "bash"], 128 + signal.SIGPIPE),
        # argparse takes no notice.
        (["--help"], 0),
    ],
)
def test_a_closed_pipe(words: Sequence[str], status: int) -> None:
    """The reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(program(*words), stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        _, said = process.communicate()
    assert (process.returncode, said) == (status, "")


def test_a_broken_pipe_that_is_not_the_output_is_a_bug() -> None:
    done = run(
        "key", "alice", code="import openai_bls.commands.key as k\ndef broken(_): raise BrokenPipeError\nk.run = broken"
    )
    assert "BrokenPipeError" in done.stderr


def test_ctrl_c() -> None:
    done = run(
        "key", "alice", code="import openai_bls.commands.key as k\ndef stop(_): raise KeyboardInterrupt\nk.run = stop"
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("words", "package", "remedy"),
    [(["doctor"], "msgspec", "."), (["smoke"], "openai", "'.[smoke]'"), (["completion", "bash"], "shtab", ".")],
)
def test_a_missing_package(words: Sequence[str], package: str, remedy: str) -> None:
    done = run(*words, code=f"import sys; sys.modules[{package!r}] = None")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"does not have the package {package}: run `pip install -e {remedy}` in the source tree" in done.stderr


def test_the_remedy_for_a_package_of_the_embedded_engine() -> None:
    assert "-e engines/transformers" in cli._remedy("tiktoken")


def test_the_remedy_outside_a_source_tree() -> None:
    code = (
        "import pathlib, sys, openai_bls.core.installing as i\n"
        "i._TREE = pathlib.Path('/a'); sys.modules['openai'] = None"
    )
    said = run("smoke", code=code).stderr
    assert f"run `pip install 'openai_bls-{__version__}-py3-none-any.whl[smoke]'` (`make wheels` " in said


@pytest.mark.parametrize(
    "words", [["completion", "zsh"], ["smoke", "--help"], ["build", "--help"], ["serve", "--help"]]
)
def test_help_and_completion_need_no_extra(words: Sequence[str]) -> None:
    done = run(
        *words, code="import sys; sys.modules.update(dict.fromkeys(('openai', 'torch', 'transformers', 'gguf')))"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    done = run("key", "alice", code="import sys; sys.modules['openai_bls.core.keys.api_keys'] = None")
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("openai-bls", "serve", "install-server", "world-size", "orchestrator"):
        assert word in script


def test_bash_completes(tmp_path: Path) -> None:
    """In a real bash: commands, options, and the values of an option."""
    script = tmp_path / "completion"
    script.write_text(run("completion", "bash").stdout)
    code = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p openai-bls | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p') openai-bls "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", code, "bash", str(script), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert {"reload", "render"} == set(completed("openai-bls", "re"))
    assert "--world-size" in completed("openai-bls", "serve", "--wor")
    assert {"leader", "orchestrator"} <= set(completed("openai-bls", "serve", "--mode", ""))


def test_doctors_document() -> None:
    """One JSON document of a declared form, whatever is found."""
    done = run("doctor", "--json", "--model-repository", "/nowhere", "--http-port", "9000")
    report = msgspec.json.decode(done.stdout, type=Report, strict=True)
    assert done.returncode == 1
    found = {finding.name: finding.status for finding in report.checks}
    assert report.failed == list(found.values()).count("failed")
    assert (found["model repository"], found["ports"]) == ("failed", "failed")
    assert {"platform", "server", "torch", "disk", "memory"} <= found.keys()


@pytest.mark.parametrize("given", ["-1", "0", "nan", "inf", "soon"])
def test_a_timeout_is_a_number_above_0(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["smoke", f"--timeout={given}"])
    assert f"argument --timeout: {given!r}" in capsys.readouterr().err
