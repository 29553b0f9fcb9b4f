"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Without a GPU our kernels run in Triton's interpreter (the language's, not the server's), which must be said before
# anything imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test fails because the machine is slow.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
