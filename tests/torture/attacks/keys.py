"""API keys of the torture's clients, and the settings of a server that knows them."""

from __future__ import annotations

from pathlib import Path

OWN = "torture-key"
"""Of everything that is neither alice nor bob. It has no name."""
ALICE = "alice-key"
BOB = "bob-key"


def authorization(key: str) -> str:
    """Value of the header."""
    return f"Bearer {key}"


def settings(folder: Path) -> dict[str, str]:
    """Environment of the server, whose files are in `folder`."""
    path = folder / "keys"
    path.write_text(f"alice: {ALICE}\nbob: {BOB}\n")
    return {
        "OPENAI_BLS_API_KEY": OWN,
        "OPENAI_BLS_API_KEYS_FILE": str(path),
        # The cases for Triton's doors are about what comes after the key.
        "OPENAI_BLS_TRITON_REQUIRES_KEY": "false",
        "OPENAI_BLS_BATCHES_DIR": str(folder / "batches"),
        "OPENAI_BLS_MAX_FILE_BYTES": str(1 << 20),
        "OPENAI_BLS_TRUST_CHAT_TEMPLATE": "true",
    }
