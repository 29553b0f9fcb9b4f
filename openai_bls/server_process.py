"""What a model can learn about the tritonserver around it, from the kernel's tables: Linux only, as Triton is."""

from __future__ import annotations

from pathlib import Path

_LISTEN = "0A"


def is_listening(pid: int) -> bool:
    """Whether process `pid` listens on any TCP port.

    A tritonserver does so only once it has been created in full, all models loaded.
    """
    inodes = set()
    for family in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{family}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        inodes |= {fields[9] for line in lines if (fields := line.split())[3] == _LISTEN}
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return True
    return False
