"""Commands that install what is missing, by files: no package index has the distributions of this repository."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from openai_bls import __version__

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "openai_bls"


def install_command(extra: str = "", root: Path | None = None) -> str:
    """Command that installs the server with an extra, or the engine that the extra names, and where it is run.

    A name without a file would be looked up on an index, where anybody may have registered it.

    Args:
        extra: an extra of pyproject.toml; empty is the server without any.
        root: folder that the package lies in, by default this one; with a pyproject.toml it is a source tree.
    """
    engine = _engine_of(extra)
    if ((root or _ROOT) / "pyproject.toml").is_file():
        name = f"engines/{engine}" if engine else f"'.[{extra}]'" if extra else "."
        return f"`pip install -e {name}` in the source tree"
    if engine:
        return f"`pip install openai_bls_{engine}-{__version__}-py3-none-any.whl`, the engine's wheel"
    wheel = f"openai_bls-{__version__}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extra}]'`" if extra else f"`pip install {wheel}`"


def _engine_of(extra: str) -> str:
    """Folder in engines/ of the distribution that an extra of ours names; empty if it names none of ours."""
    try:
        wanted = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return ""
    for line in wanted:
        requirement, _, condition = line.replace("'", '"').partition(";")
        name = requirement.split()[0].replace("-", "_")
        if name.startswith(f"{_PACKAGE}_") and f'extra == "{extra}"' in condition:
            return name.removeprefix(f"{_PACKAGE}_")
    return ""
