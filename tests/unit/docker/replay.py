"""Runs a Dockerfile's instructions in a scratch folder, without a Docker engine.

Done as Docker does it: COPY (from the build context that .dockerignore leaves, with the modes of a checkout whose umask
was 077), RUN in the SHELL in force with ARG and ENV, bind mounts, WORKDIR, USER, metadata.

Not done: FROM (the caller prepares a Python that stands in for the base image), cache and secret mounts, and users:
everything runs as the user of the test. Paths of the image are written as paths of the scratch folder, in RUN lines and
in ENV; a RUN line that names another absolute path is an error, so that nothing outside the scratch folder is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import dockerfile  # type: ignore[import-not-found]
from docker.utils import exclude_paths  # type: ignore[import-untyped]

# Where the images have files of their own. `/tmp` holds what is mounted for one RUN.
_FOLDERS = ("checkpoint", "models", "opt", "run", "source", "tmp", "var", "wheels")
_ABSOLUTE = re.compile(r"(?<![\w./:$}~*-])/(?=[\w.])[\w.-]+")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class ReplayError(Exception):
    """An instruction failed, or cannot be replayed; names it and its line."""


@dataclass(frozen=True)
class Stage:
    """A stage as it is written."""

    name: str
    base: str
    commands: tuple[dockerfile.Command, ...]


@dataclass
class Image:
    """What a stage has made so far."""

    root: Path
    """The scratch folder that is the image's `/`."""
    path: str
    """PATH, on which the stand-in's `python3` comes first."""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    user: str = ""
    metadata: dict[str, list[str]] = field(default_factory=dict)
    """ENTRYPOINT, CMD, HEALTHCHECK, EXPOSE and LABEL, each as its words."""
    flags: dict[str, list[str]] = field(default_factory=dict)
    """The flags of these."""

    def at(self, path: str) -> Path:
        """A path of the image, relative ones from its WORKDIR, on this machine."""
        return self.root / str(PurePosixPath(self.workdir, path)).lstrip("/")

    def mapped(self, text: str) -> str:
        """`text` with the image's absolute paths as this machine's."""
        if self.root == Path("/"):
            return text

        def of(match: re.Match[str]) -> str:
            if match[0].strip("/") not in _FOLDERS:
                raise ReplayError(f"{match[0]} is none of the folders that are replayed: {text}")
            return f"{self.root}{match[0]}"

        return _ABSOLUTE.sub(of, text)

    def process_environment(self, extra: Mapping[str, str] = {}) -> dict[str, str]:
        """What a process of the image sees; nothing of this process's environment but pip's settings in `extra`."""
        own = {name: self.mapped(value) for name, value in self.environment.items()}
        return {"PATH": self.path, "HOME": str(self.root), "LANG": "C.UTF-8", **own, **extra}


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile, read."""

    arguments: dict[str, str]
    """The defaults of the ARGs before the first FROM."""
    stages: dict[str, Stage]
    """By name; the last one, if it has none, is called `""`."""


def read(path: Path) -> Dockerfile:
    """Read a Dockerfile."""
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for command in dockerfile.parse_file(str(path)):
        if command.cmd == "FROM":
            base, name = _expand(command.value[0], arguments), "".join(command.value[2:])
            found[name] = Stage(name, base, ())
        elif not found:
            name, _, value = command.value[0].partition("=")
            arguments[name] = value
        else:
            name, stage = list(found.items())[-1]
            found[name] = replace(stage, commands=(*stage.commands, command))
    return Dockerfile(arguments, found)


class Replay:
    """Replays stages.

    Args:
        context: the build context, a folder with a Dockerfile and a .dockerignore.
        build_arguments: values for ARG.
        environment: for every RUN, such as pip's settings.
        contexts: folders for `from=` of mounts: other stages' roots, named build contexts.
        replaced: files that stand in for those of the context, by their names there.
    """

    def __init__(
        self,
        context: Path,
        build_arguments: Mapping[str, str],
        environment: Mapping[str, str],
        contexts: dict[str, Path],
        replaced: Mapping[str, Path] = {},
    ) -> None:
        self.dockerfile = read(context / "Dockerfile")
        self._context = context
        self._build_arguments = {**self.dockerfile.arguments, **build_arguments}
        self._environment = environment
        self._replaced = replaced
        self.contexts = contexts
        lines = (context / ".dockerignore").read_text().splitlines()
        patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        found = (PurePosixPath(name) for name in exclude_paths(str(context), patterns, dockerfile="Dockerfile"))
        # Docker sends these two to the builder in any case; no COPY may rely on them.
        sent = (name for name in found if str(name) not in ("Dockerfile", ".dockerignore"))
        self.files = sorted(name for name in sent if (context / name).is_file())
        """The files of the build context."""

    def run(self, name: str, image: Image, *, leave_out: str = "") -> Image:
        """Carry out all instructions of a stage on `image`; its root serves as `from=` of later stages.

        Args:
            name: of the stage.
            image: what the stage is based on.
            leave_out: a RUN with this in it is not carried out, if one is named; there must be one.
        """
        left_out = 0
        stage = self.dockerfile.stages[name]
        image.root.mkdir(parents=True, exist_ok=True)
        image.arguments = {}
        for command in stage.commands:
            if leave_out and command.cmd == "RUN" and leave_out in command.value[0]:
                left_out += 1
                continue
            try:
                self._one(command, image)
            except (ReplayError, OSError) as error:
                raise ReplayError(f"line {command.start_line}, {command.original.split()[0]}: {error}") from error
        if left_out != bool(leave_out):
            raise ReplayError(f"{left_out} instructions of {name} have {leave_out} in them")
        self.contexts[stage.name] = image.root
        return image

    def _one(self, command: dockerfile.Command, image: Image) -> None:
        values = list(command.value)
        variables = {**image.arguments, **image.environment}
        match command.cmd:
            case "ARG":
                name, _, default = values[0].partition("=")
                image.arguments[name] = self._build_arguments.get(name, default)
            case "ENV":
                for name, value in zip(values[::2], values[1::2], strict=True):
                    image.environment[name] = _expand(value, variables)
            case "SHELL":
                image.shell = values
            case "WORKDIR":
                image.workdir = str(PurePosixPath(image.workdir, _expand(values[0], variables)))
                image.at(".").mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = values[0]
            case "COPY":
                self._copy(command, [_expand(value, variables) for value in values], image)
            case "RUN":
                self._run(command, image)
            case "LABEL" | "ENTRYPOINT" | "CMD" | "HEALTHCHECK" | "EXPOSE":
                image.metadata[command.cmd] = [_expand(value, variables) for value in values]
                image.flags[command.cmd] = list(command.flags)
            case other:
                raise ReplayError(f"{other} is an instruction that the replay does not know")

    def _copy(self, command: dockerfile.Command, values: list[str], image: Image) -> None:
        if command.flags:
            raise ReplayError(f"{' '.join(command.flags)} of COPY is not replayed")
        *sources, last = values
        if len(sources) > 1 and not last.endswith("/"):
            raise ReplayError("several sources need a folder, which ends in /")
        target = image.at(last)
        for source in map(PurePosixPath, sources):
            below = [name for name in self.files if name.is_relative_to(source)]
            if not below:
                raise ReplayError(
                    f"{source} is not in the build context: it does not exist, or .dockerignore ignores it"
                )
            for name in below:
                # Of a folder Docker copies what is in it; of a file the file, into a folder if the target ends in /.
                inside = name.relative_to(source) if name != source else name.name if last.endswith("/") else ""
                self._place(name, target / inside)

    def _place(self, name: PurePosixPath, target: Path) -> None:
        missing = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700)
        shutil.copyfile(self._replaced.get(str(name), self._context / name), target)
        target.chmod(0o600)

    def _run(self, command: dockerfile.Command, image: Image) -> None:
        arguments = {name: image.mapped(value) for name, value in image.arguments.items()}
        environment = image.process_environment({**arguments, **self._environment})
        with self._mounts(command.flags, image):
            done = subprocess.run(
                [*image.shell, image.mapped(command.value[0])],
                cwd=image.at("."),
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                umask=0o022,
            )
        if done.returncode != 0:
            raise ReplayError(f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")

    @contextmanager
    def _mounts(self, flags: tuple[str, ...], image: Image) -> Iterator[None]:
        """Bind mounts, as copies that are there for one RUN."""
        placed: list[Path] = []
        try:
            for flag in flags:
                options = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
                if not flag.startswith("--mount=") or options["type"] not in ("bind", "cache", "secret"):
                    raise ReplayError(f"{flag} is not replayed")
                if options["type"] == "bind":
                    placed.append(self._mount(options, image))
            yield
        finally:
            for path in placed:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _mount(self, options: Mapping[str, str], image: Image) -> Path:
        target = image.at(options["target"])
        if "from" in options:
            folder = self.contexts[options["from"]]
            shutil.copytree(folder / options.get("source", "").lstrip("/"), target)
        elif (name := PurePosixPath(options["source"])) in self.files:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._place(name, target)
        else:
            raise ReplayError(f"{name} is not in the build context")
        return target


def _expand(text: str, variables: Mapping[str, str]) -> str:
    text = text[1:-1] if text[:1] == text[-1:] == '"' else text
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def stand_in_for_install(folder: Path) -> None:
    """`install` that leaves owners as they are, which only root may set."""
    real = shutil.which("install")
    assert real is not None
    script = folder / "install"
    script.write_text(
        f'#!/bin/bash\nkept=()\nwhile (($#)); do case $1 in -o|-g) shift 2;; *) kept+=("$1"); shift;; esac; done\n'
        f'exec {real} "${{kept[@]}}"\n'
    )
    script.chmod(0o755)


def is_root() -> bool:
    """Whether owners can be set."""
    return os.geteuid() == 0
