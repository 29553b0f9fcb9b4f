"""Random numbers of sampled tokens, by which a seed gives the same tokens in any batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def random_bits(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """32 random bits for each row: a function of its seed and its position alone (SplitMix64, mixed twice).

    Args:
        seeds: shape [n].
        positions: shape [n], the index in the sequence of the token to be chosen.
    """
    mixed = _mix(_mix(seeds + _GOLDEN) + (positions + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
