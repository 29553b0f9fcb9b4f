"""Start of an engine's process in an interpreter that may have no openai_bls installed.

Run as a script, by its path, with the standard library only: it makes the package that it lies in importable, alone,
without the other packages beside it. Processes that Python's multiprocessing starts run it too, as `__mp_main__`.
"""

import importlib.util
import sys
from pathlib import Path

# Older ones can read this file, and say so.
_OLDEST = (3, 10)
_FOLDER = Path(__file__).absolute().parent
_PACKAGE = _FOLDER.parent.parent


def _import_package() -> None:
    # A script's own folder comes first on the path, and would hide other modules by the names of those in it.
    sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != _FOLDER]
    if "openai_bls" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "openai_bls", str(_PACKAGE / "__init__.py"), submodule_search_locations=[str(_PACKAGE)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["openai_bls"] = module
        spec.loader.exec_module(module)


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
    _import_package()

if __name__ == "__main__":
    if sys.version_info < _OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(_refuse(f"{sys.executable} is Python {version}, and an engine needs 3.10 or later"))
    sys.exit(_main())
