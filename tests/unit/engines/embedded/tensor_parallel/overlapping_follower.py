"""Process of a rank whose steps overlap as on a GPU."""

import sys

import pytest

from openai_bls.engines.embedded.tensor_parallel import follower
from tests.unit.engines.embedded.overlapping import overlap

if __name__ == "__main__":
    overlap(pytest.MonkeyPatch())
    follower.main(sys.argv[1:])
