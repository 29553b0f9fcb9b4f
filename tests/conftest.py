"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

# Without a GPU our kernels run in Triton's interpreter (the language's, not the server's), which must be said before
# anything imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
