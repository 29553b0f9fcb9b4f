"""Room for uploaded files, of which each API key has its share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from openai_bls.api.batches.records import FileRecord
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.core.keys.shares import Shares


class Upload(NamedTuple):
    """A file that is about to be kept."""

    key: str
    """Name of the API key that sends it."""
    bytes: int


def files_to_delete(
    kept: Iterable[FileRecord],
    inputs: Collection[str],
    others: Iterable[Upload],
    new: Upload,
    max_files: int,
    max_bytes: int,
) -> list[str]:
    """Ids of the files that go to make room for one more: the oldest of keys that have more than their share.

    Args:
        kept: all files, the oldest first.
        inputs: ids of those that may not go: inputs of batches.
        others: further files that are about to be kept.
        new: the file.
        max_files: most files of all keys.
        max_bytes: most bytes of all keys' files.

    Raises:
        InvalidRequestError: the key has as much as it can have; its own files do not go.
        OverloadedError: others have more than their share, of which nothing may go just now.
    """
    shares = Shares(max_files, max_bytes)
    sizes: dict[str, int] = {}
    for record in kept:
        sizes[record.id] = record.bytes
        shares.add(record.owner, record.id, pinned=record.id in inputs)
        shares.charge(record.owner, record.bytes)
    for at, upload in enumerate([*others, new]):
        shares.add(upload.key, f"upload {at}", pinned=True)
        shares.charge(upload.key, upload.bytes)
    if shares.used(new.key) > shares.room(new.key) or shares.count(new.key) > shares.room_for_entries(new.key):
        raise InvalidRequestError(
            f"There is no room for more files: those of this API key may be {shares.room_for_entries(new.key)}, of "
            f"{shares.room(new.key)} bytes together. Delete some.",
            param="file",
            code="storage_quota_exceeded",
        )
    going = []
    while (name := shares.excess()) is not None and (owner := shares.owner(name)) != new.key:
        shares.remove(name)
        shares.charge(owner, -sizes[name])
        going.append(name)
    if shares.is_over:
        raise OverloadedError("There is no room for more files here until a batch has ended; try again later.")
    return going
