"""The kernels that put logits together, with the memory of one process for that of all ranks."""

from __future__ import annotations

import pytest
import torch

from openai_bls.engines.embedded.gpu import gather_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST_ROWS = 4


@pytest.mark.parametrize("width", [40, 5000])
def test_parts_come_behind_each_other(width: int) -> None:
    tiles = MOST_ROWS * gather_kernels.tiles(width)
    flags, turns = (torch.zeros(2, tiles, dtype=torch.int32, device=DEVICE) for _ in range(2))
    sent = torch.zeros(2, tiles, dtype=torch.int32, device=DEVICE)
    parts = torch.zeros(2, MOST_ROWS, width, dtype=torch.float16, device=DEVICE)
    stop = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for rows in (2, 1, 4):
        all_parts = torch.randn(3, rows, width, dtype=torch.float16, device=DEVICE)
        for rank in (1, 2):
            addresses = flags[rank - 1].data_ptr(), parts[rank - 1].data_ptr()
            gather_kernels.send(all_parts[rank], sent[rank - 1], *addresses)
        found = gather_kernels.receive(all_parts[0], turns, flags, parts, stop)
        assert torch.equal(found, torch.cat([*all_parts], -1))


def test_waiting_ends_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_kernels, "_LOOKS", 1)
    flags, turns = (torch.zeros(1, MOST_ROWS, dtype=torch.int32) for _ in range(2))
    parts, own = torch.zeros(1, MOST_ROWS, 8, dtype=torch.float16), torch.ones(2, 8, dtype=torch.float16)
    found = gather_kernels.receive(own, turns, flags, parts, torch.ones(1, dtype=torch.int32))
    assert found.tolist() == [[1.0] * 8 + [0.0] * 8] * 2
