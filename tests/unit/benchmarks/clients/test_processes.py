"""CPU time of process trees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.clients.processes import cpu_used, machine_seconds, sample_cpu


def test_the_tree_is_summed_by_name() -> None:
    before = {(1, "tritonserver"): 1.0, (2, "gone"): 5.0}
    after = {(1, "tritonserver"): 3.0, (3, "late"): 0.5, (4, "late"): 1.0}
    assert cpu_used(before, after) == {"tritonserver": 2.0, "late": 1.5}


def test_a_stub_is_named_by_its_model_and_uses_cpu_time(tmp_path: Path) -> None:
    script = tmp_path / "openai_bls" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()")
    before, machine = sample_cpu(os.getpid()), machine_seconds()
    child = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    used = cpu_used(before, sample_cpu(os.getpid()))
    child.communicate(b"\n")
    assert used["openai_bls"] >= 0.15
    assert machine_seconds() - machine >= 0.15
    assert sample_cpu(child.pid) == {}
