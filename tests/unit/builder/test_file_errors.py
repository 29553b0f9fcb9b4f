"""Errors of the file system: the disk, the repository, or another file."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from openai_bls.builder.file_errors import of_files


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_our_own_writing(number: int, tmp_path: Path) -> None:
    found = of_files(OSError(number, "full", str(tmp_path / "no" / "such" / "file")), Path("/"))
    assert found is not None
    assert f"are free at {tmp_path}; free some" in str(found)
    assert f"are free at {tmp_path}; free some" in str(of_files(OSError(number, "full"), tmp_path))


def test_a_copy_tells_of_the_disk_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    full = OSError(errno.ENOSPC, "full", str(tmp_path / "file"), None, str(tmp_path / "here" / "file"))
    assert f"are free at {tmp_path / 'here'}; free some" in str(of_files(full, Path("/")))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"text")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(tmp_path / "tree", tmp_path / "here" / "tree", copy_function=lambda *_: _raise(full))
    assert f"are free at {tmp_path / 'here' / 'tree'}; free some" in str(of_files(caught.value, Path("/")))


def _raise(error: OSError) -> None:
    raise error


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    inside, outside = tmp_path / "repository" / "tensorrt_llm" / "1" / "engine.json", tmp_path / "elsewhere"
    inside.parent.mkdir(parents=True)
    repository = tmp_path / "repository"
    for number in (errno.EROFS, errno.EACCES, errno.EPERM):
        said = str(of_files(OSError(number, os.strerror(number), str(inside)), repository))
        assert said.startswith(f"the model repository cannot be changed: {os.strerror(number)} ({inside.parent}): ")
        assert f"({repository})" in str(of_files(OSError(number, os.strerror(number)), repository))
    with pytest.raises(OSError, match="elsewhere") as caught:
        outside.read_bytes()
    assert str(of_files(caught.value, repository)) == f"{outside} cannot be read or written: No such file or directory"
    # Of a connection, say: about no file at all.
    assert of_files(BrokenPipeError(errno.EPIPE, "Broken pipe"), repository) is None
