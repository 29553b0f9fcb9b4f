"""Command `<environment>/bin/tritonserver`: the wheel's server, with the flags it was given."""

from __future__ import annotations

import os
import sys

from openai_bls.launcher import checks
from openai_bls.launcher.console import fail
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver.command import prepare


def main() -> int:
    """Become the server; the process id, signals and exit code are its own."""
    try:
        server, command, environment = prepare(sys.argv[1:])
        checks.check_runtime(server)
        os.execve(command[0], command, environment)
    except LaunchError as error:
        fail(str(error), "tritonserver")
    except OSError as error:
        fail(f"it cannot be run: {error}", "tritonserver")
    return 1


if __name__ == "__main__":
    sys.exit(main())
