"""Start of an engine's process in an interpreter that may have no openai_bls installed.

Run as a script, by its path, with the standard library only: it makes importable the package that it lies in and those
of the engines in `PLUGINS`, without the other packages beside them. Processes that Python's multiprocessing starts run
it too, as `__mp_main__`.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

# Older ones can read this file, and say so.
_OLDEST = (3, 10)
_FOLDER = Path(__file__).absolute().parent
_PACKAGE = _FOLDER.parent.parent
# As in `engines.registry`.
PLUGINS = "OPENAI_BLS_PLUGINS"


class _PackageFinder(importlib.abc.MetaPathFinder):
    """Finds packages by their folders.

    Args:
        folders: name of a package → its folder.
    """

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        folder = self._folders.get(fullname)
        if folder is None:
            return None
        file = str(folder / "__init__.py")
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[str(folder)])


def _find_packages() -> None:
    # A script's own folder comes first on the path, and would hide other modules by the names of those in it.
    sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != _FOLDER]
    folders = {
        value.partition(":")[0].partition(".")[0]: Path(folder)
        for value, folder in json.loads(os.environ.get(PLUGINS, "{}")).values()
        if folder
    }
    sys.meta_path.insert(0, _PackageFinder({**folders, "openai_bls": _PACKAGE}))


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"openai_bls: error: {sentence}\n")
    return 2


def _main() -> int:
    try:
        from openai_bls.transport.engine_process.worker import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "openai_bls"):
            raise
        return _refuse(
            f"{sys.executable} does not have the package {package}: run `{sys.executable} -m pip install msgspec "
            "numpy`, or make an environment for the engine with `openai-bls install-engine`"
        )
    return main(sys.argv[1:])


if sys.version_info >= _OLDEST:
    _find_packages()

if __name__ == "__main__":
    if sys.version_info < _OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(_refuse(f"{sys.executable} is Python {version}, and an engine needs 3.10 or later"))
    sys.exit(_main())
