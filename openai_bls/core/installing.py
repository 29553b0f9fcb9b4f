"""Commands that install parts of this release, from its source tree or from the wheels that are made of it.

No package index has the project's names, and anybody may register them: a command with a bare name would install what
somebody else has put there. So no message has one, and no extra names a distribution of the project.
"""

from __future__ import annotations

from pathlib import Path

from openai_bls import __version__

SERVER = "openai_bls"
_TREE = Path(__file__).parents[2]


def with_extra(extra: str = "") -> str:
    """Advice to install the server, with an extra."""
    wanted = f"[{extra}]" if extra else ""
    if _is_tree():
        return f"run `pip install -e {_quoted('.', wanted)}` in the source tree"
    return f"run `pip install {_quoted(_wheel(SERVER), wanted)}` ({_MADE})"


def with_engine(engine: str) -> str:
    """Advice to install the distribution of an engine next to the server's."""
    if _is_tree():
        return f"run `pip install -e . -e engines/{engine}` in the source tree"
    return f"run `pip install {_wheel(SERVER)} {_wheel(f'{SERVER}_{engine}')}` ({_MADE})"


_MADE = "`make wheels` in a checkout writes such files to dist/"


def _is_tree() -> bool:
    return (_TREE / "pyproject.toml").is_file()


def _wheel(distribution: str) -> str:
    return f"{distribution}-{__version__}-py3-none-any.whl"


def _quoted(what: str, extra: str) -> str:
    return f"'{what}{extra}'" if extra else what
