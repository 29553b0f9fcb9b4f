"""Variables `OPENAI_BLS_...` of the environment that nothing reads, and the nearest name that something reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from openai_bls.core.nearest import nearest
from openai_bls.core.processes.machine import ENGINE_FOLDER, ENGINE_MARK, SERVER_MARK
from openai_bls.core.processes.process_tree import OUTER_LIBRARY_PATH_VARIABLE
from openai_bls.core.settings import ENV_PREFIX, EngineSettings, OpenAiBlsSettings, PreprocessingSettings
from openai_bls.engines import registry
from openai_bls.launcher.checks import PORT_SETTINGS
from openai_bls.launcher.tritonserver.command import THREAD_POOL_VARIABLE
from openai_bls.launcher.workspace import REPOSITORY_VARIABLE
from openai_bls.pipeline.metrics.restarts import VARIABLE as RESTARTS_VARIABLE
from openai_bls.triton_models.repository.foreign_backend import foreign_backends

TRITON_HOST_VARIABLE = "OPENAI_BLS_TRITON_HOST"

_SETTINGS = (OpenAiBlsSettings, PreprocessingSettings, EngineSettings)
_OWN = {
    SERVER_MARK,
    OUTER_LIBRARY_PATH_VARIABLE,
    ENGINE_FOLDER,
    RESTARTS_VARIABLE,
    ENGINE_MARK,
    registry.VARIABLE,
    "OPENAI_BLS_BENCH_KEY",
}
"""Variables that our programs set for each other."""
_SERVICE = re.compile(r"OPENAI_BLS(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""Variables that Kubernetes sets in every pod for a service called `openai-bls` or `openai-bls-...`."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence about each variable with our prefix that nothing reads."""
    given = [name for name in sorted(environ) if name.startswith(ENV_PREFIX)]
    if not given:
        return []
    known = _known()
    said = []
    for name in given:
        if name in known or name in _OWN or _SERVICE.fullmatch(name):
            continue
        # Without the prefix, which would make all of them alike.
        near = nearest(name.removeprefix(ENV_PREFIX), [one.removeprefix(ENV_PREFIX) for one in sorted(known)])
        hint = f": did you mean {ENV_PREFIX}{near}?" if near else ""
        said.append(f"nothing reads the variable {name}{hint}")
    return said


def _known() -> set[str]:
    """Variables that people set."""
    foreign: list[type[msgspec.Struct]] = [backend.settings for backend in foreign_backends().values()]
    structs: tuple[type[msgspec.Struct], ...] = (*_SETTINGS, *foreign)
    settings = {f"{ENV_PREFIX}{name.upper()}" for cls in structs for name in cls.__struct_fields__}
    options = {
        f"{ENV_PREFIX}ENGINE_{name.upper()}"
        for engine in registry.plugins()
        if engine.options is not None
        for name in ("engine", *engine.options().__struct_fields__)
    }
    ports = {variable for _, _, variable in PORT_SETTINGS.values()}
    launcher = {REPOSITORY_VARIABLE, TRITON_HOST_VARIABLE, THREAD_POOL_VARIABLE, f"{ENV_PREFIX}ENGINE"}
    return settings | options | ports | launcher
