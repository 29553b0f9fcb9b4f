"""YAML files of further engine arguments, as the options of a build name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import BuildError, first_line


def read_yaml(option: str, path: Path) -> dict[str, Any]:
    """Names and values of the file `path`, which `option` names.

    Raises:
        BuildError: it cannot be read, holds no mapping, or a value that JSON does not have; one sentence.
    """
    import yaml

    try:
        found = yaml.safe_load(path.expanduser().read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"{option} {path} cannot be read: {first_line(error)}") from None
    except yaml.YAMLError as error:
        raise BuildError(f"{option} {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not found:
        raise BuildError(f"{option} {path} has no mapping of names to values")
    try:
        msgspec.json.encode(found)
    except TypeError as error:
        raise BuildError(f"{option} {path} has a value that no argument is: {error}") from None
    return found
