from __future__ import annotations

import pytest

from openai_bls.core.machine import nvidia_smi

TABLE = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 9.0
1, GPU-bbbb, NVIDIA L4, 23034, 8.9
2, GPU-cccc, NVIDIA L4, [N/A], 8.9
no GPU at all
"""
H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (None, [H100, L4]),
        ("1", [L4]),
        ("1,0", [L4, H100]),
        ("GPU-bb,GPU-aa", [L4, H100]),
        ("0,7,1", [H100]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus(devices: str | None, names: list[str]) -> None:
    assert [gpu.name for gpu in nvidia_smi.parse(TABLE, devices)] == names
