"""Images that `make images` has built, and containers of them, which namespaces and run.sh make."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.waiting import Spoken

STORE = ROOT / ".images"
USER = 1_000_650_000
"""A user as OpenShift chooses one: in no list of the image's, in group 0."""
SPACES = ("--mount", "--pid", "--ipc", "--uts")
PATIENCE_S = 300.0


def builder(*arguments: str) -> str:
    """What buildah says."""
    command = ["buildah", "--root", str(STORE / "images"), "--runroot", str(STORE / "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True)
class Image:
    """An image, mounted."""

    name: str
    root: Path
    """Its `/`."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its USER, ENTRYPOINT, CMD and the like."""
        about = json.loads(builder("inspect", "--type", "image", self.name))
        config: dict[str, Any] = about["Docker"]["config"]
        return config

    @property
    def environment(self) -> dict[str, str]:
        """Its ENV."""
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    def at(self, path: str) -> Path:
        """A path of the image, relative ones from its WORKDIR, on this machine."""
        return self.root / os.path.join(self.config["WorkingDir"] or "/", path).lstrip("/")  # noqa: PTH118

    def command(self, words: Sequence[str], volumes: Mapping[str, Path], environment: Mapping[str, str]) -> list[str]:
        """Command that runs `words` in a new container."""
        mounts = [f"{folder}:{path}" for path, folder in volumes.items()]
        inside = self.inside(words, environment)
        script = str(Path(__file__).with_name("run.sh"))
        return ["unshare", *SPACES, "--fork", "--kill-child", script, str(self.root), str(USER), *mounts, "--", *inside]

    def inside(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Command for `words` as the image's processes are started."""
        given = {**self.environment, "OMP_NUM_THREADS": "1", **environment}
        settings = [f"{name}={value}" for name, value in given.items()]
        return ["env", "-i", f"--chdir={self.config['WorkingDir'] or '/'}", *settings, *words]

    def start(
        self, *arguments: str, volumes: Mapping[str, Path] = {}, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the image's ENTRYPOINT to its end, with `arguments` in the place of its CMD."""
        words = [*self.config["Entrypoint"], *arguments]
        return subprocess.run(
            self.command(words, volumes, environment), capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    def python(self, code: str, interpreter: str = "python3") -> str:
        """What `code` prints in one of the image's Pythons."""
        command = self.command([interpreter, "-c", code], {}, {})
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def mounted(target: str) -> Iterator[Image]:
    """The image of a target of the Dockerfile."""
    name = target if "/" in target else f"localhost/openai_bls:{target}"
    container = builder("from", "--pull-never", name)
    try:
        yield Image(name, Path(builder("mount", container)))
    finally:
        builder("rm", container)


class Container(Spoken):
    """A container with the image's ENTRYPOINT and CMD.

    Args:
        image: its image.
        arguments: in the place of the CMD, unless there are none.
        volumes: folders by the paths where they are mounted.
        environment: added to the image's.
    """

    def __init__(
        self,
        image: Image,
        *arguments: str,
        volumes: Mapping[str, Path] = {},
        environment: Mapping[str, str] = {},
    ) -> None:
        self.image = image
        self._environment = environment
        words = [*image.config["Entrypoint"], *(arguments or image.config["Cmd"])]
        command = image.command(words, volumes, environment)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        super().__init__(process, PATIENCE_S)

    @property
    def first(self) -> int:
        """Process id, outside, of the container's process 1."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def health(self) -> subprocess.CompletedProcess[str]:
        """What the HEALTHCHECK says, run in the container."""
        kind, *words = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        enter = ["nsenter", "--target", str(self.first), "--mount", "--pid", "--ipc", "--uts", "--root"]
        user = ["setpriv", "--reuid", str(USER), "--regid", "0", "--clear-groups"]
        command = [*enter, *user, *self.image.inside(words, self._environment)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def processes(self) -> list[tuple[int, str]]:
        """Process ids, outside, and command lines of all that runs in the container."""
        space = Path(f"/proc/{self.first}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns" / "pid").readlink() == space:
                    found.append((int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")))
        return found

    def stop(self) -> int:
        """As `docker stop`; returns the exit status."""
        os.kill(self.first, signal.SIGTERM)
        return self.finish()


@contextmanager
def running(
    image: Image, *arguments: str, volumes: Mapping[str, Path] = {}, environment: Mapping[str, str] = {}
) -> Iterator[Container]:
    """A container, which is gone at the end of the block."""
    container = Container(image, *arguments, volumes=volumes, environment=environment)
    try:
        yield container
    finally:
        if container.process.poll() is None:
            # With unshare goes process 1, and with that all the others.
            container.process.kill()
            container.process.communicate()
