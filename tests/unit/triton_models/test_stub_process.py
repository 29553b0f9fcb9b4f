from __future__ import annotations

import subprocess
import sys

from openai_bls.triton_models import stub_process


def run(code: str) -> None:
    # In a process of its own: this one goes on to use torch.
    code = f"from openai_bls.triton_models import stub_process\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torch_cannot_be_had_any_more() -> None:
    run(
        "import importlib.util, os\n"
        "os.environ['TOKENIZERS_PARALLELISM'] = 'true'\n"
        "stub_process.keep_torch_out()\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "try:\n"
        "    import torch\n"
        "except ImportError:\n"
        "    pass\n"
        "else:\n"
        "    raise SystemExit('imported')\n"
        # The environment may say otherwise.
        "assert os.environ['TOKENIZERS_PARALLELISM'] == 'true'\n"
        "assert os.environ['TRANSFORMERS_NO_ADVISORY_WARNINGS'] == '1'\n"
    )


def test_torch_that_is_there_stays() -> None:
    run(
        "import sys, types\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "stub_process.keep_torch_out()\n"
        "assert sys.modules['torch'] is torch\n"
    )


def test_settling_is_harmless() -> None:
    stub_process.settle()
    stub_process.settle()
