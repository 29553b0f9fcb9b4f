"""Running every check and saying what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_bls.launcher import checks
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.server import find_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from openai_bls.launcher.console import Console
    from openai_bls.launcher.ports import Ports


def doctor(console: Console, repository: Path, ports: Ports, host: str) -> int:
    """Run all checks, whatever the others say; 0 if every one passed."""
    todo: list[Callable[[], str | None]] = [checks.check_platform, checks.check_shm]
    failures = 0
    try:
        server = find_server()
    except LaunchError as error:
        failures += 1
        console.line(f"FAIL  {error}")
    else:
        console.line(f"ok    tritonserver ({server.version}) from {server.binary}")
        todo += [lambda: checks.check_python(server), lambda: checks.check_numpy(server)]
    todo += [
        lambda: checks.check_repository(repository),
        lambda: checks.check_engine(repository),
        lambda: checks.check_ports(ports, host),
    ]
    for check in todo:
        try:
            found = check()
        except LaunchError as error:
            failures += 1
            console.line(f"FAIL  {error}")
        else:
            if found:
                console.line(f"ok    {found}")
    console.line("all is well" if not failures else f"{failures} to mend")
    return 1 if failures else 0
