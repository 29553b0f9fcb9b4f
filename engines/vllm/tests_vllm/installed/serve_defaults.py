"""Scheduler settings of the real vLLM on a GPU that is pretended; run by an interpreter that has vLLM.

::

    PYTHONPATH=.:engines/vllm <vllm's python> serve_defaults.py VERSION_DIR MODEL < devices.json

A device is `[name, bytes of memory]`. Prints for each `[ours, theirs]`: what `loading` makes of the engine in
VERSION_DIR, and what the command line of `vllm serve` makes of MODEL. No engine is started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_vllm import loading
from openai_bls_vllm.module import Vllm

COMPARED = ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "async_scheduling", "policy")


class Pretended:
    """The platform, for the defaults that go by the device."""

    def __init__(self, platform: Any, name: str, memory: int) -> None:
        self._platform = platform
        self.get_device_name = lambda device_id=0: name
        self.get_device_total_memory = lambda device_id=0: memory
        self.is_cpu = lambda: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def main() -> None:
    """Print the settings."""
    version_dir, model = Path(sys.argv[1]), sys.argv[2]
    devices = json.load(sys.stdin)
    import vllm.engine.arg_utils
    from vllm.platforms import current_platform

    Vllm.on_cpu = property(lambda self: False)  # type: ignore[assignment]
    found = []
    for name, memory in devices:
        vllm.engine.arg_utils.current_platform = Pretended(current_platform, name, memory)
        found.append([settings(ours(version_dir)), settings(theirs(model))])
    sys.stdout.write(json.dumps(found))


def ours(version_dir: Path) -> Any:
    """`VllmConfig` of an engine."""
    return loading._config(loading._prepare(version_dir, load_manifest(version_dir), EngineSettings(), None))


def theirs(model: str) -> Any:
    """`VllmConfig` of `vllm serve`, with the sequences and the length of the engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    except ImportError:
        # Its place since 0.31.
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    parser = make_arg_parser(FlexibleArgumentParser())
    given = parser.parse_args(["--model", model, "--max-num-seqs", "64", "--max-model-len", "2048"])
    return AsyncEngineArgs.from_cli_args(given).create_engine_config(UsageContext.OPENAI_API_SERVER)


def settings(config: Any) -> Mapping[str, Any]:
    """What is compared of a `VllmConfig`."""
    return {name: getattr(config.scheduler_config, name) for name in COMPARED}


if __name__ == "__main__":
    main()
