"""A small checkpoint, the fake TensorRT-LLM over it, and the calls that it has had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from openai_bls.core.engine_types import SamplingParams
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, LlmOptions, LoraAdapter, Sampling
from tests_tensorrt_llm.engine.fake_support import VERSIONS, in_process, on_loop, small_checkpoint

END = 9
FLOWS = [(version, flow) for version in VERSIONS for flow in ("tensorrt", "pytorch")]
FLOWS.remove(("0.20.0", "pytorch"))
GREEDY = SamplingParams(temperature=0)
PLAIN = Sampling(max_tokens=8, end_id=END, pad_id=0, params=GREEDY, vocab_size=20)


class World:
    """A small checkpoint, the fake over it, and the calls that the fake has had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = small_checkpoint(folder / "checkpoint")
        self.log = folder / "calls"

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Arguments of the calls of this name so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [found for line in lines if (found := json.loads(line))["call"] == name]

    def api(self, version: str = "1.2.1", **values: str) -> AbstractContextManager[Api]:
        """A context with `api.installed()`."""
        return in_process(version, **{"tokens": "5,6,7", "calls": str(self.log)} | values)

    @contextmanager
    def opened(self, version: str = "1.2.1", flow: str = "pytorch", **values: Any) -> Iterator[tuple[Api, Any]]:
        """The API with a model that it has opened, and that is shut down at the end."""
        with self.api(version) as installed:
            llm = installed.open(self.options(installed, flow, **values))
            try:
                yield installed, llm
            finally:
                llm.shutdown()

    def spec(self, **values: Any) -> BuildSpec:
        """A build of a small engine."""
        output, workspace = self.folder / "engine", self.folder / "workspace"
        workspace.mkdir(exist_ok=True)
        fields = {"max_batch_size": 4, "max_input_len": 16, "max_seq_len": 32, "max_num_tokens": 64}
        return BuildSpec(self.checkpoint, output, workspace, **fields | values)

    def options(self, installed: Api, flow: str, **values: Any) -> LlmOptions:
        """Options of a model that is ready to be opened; builds the engine first where one is needed."""
        if flow == "tensorrt":
            installed.build(self.spec(gather_logits=True))
            values = {"gather_generation_logits": True} | values
        model = self.folder / "engine" if flow == "tensorrt" else self.checkpoint
        return LlmOptions(model, flow, max_batch_size=4, max_model_len=32, **values)  # type: ignore[arg-type]


def asking(**values: Any) -> Sampling:
    """`PLAIN` with other values, also of `SamplingParams`."""
    params = {name: values.pop(name) for name in SamplingParams.__struct_fields__ if name in values}
    return replace(PLAIN, params=replace(GREEDY, **params), **values)


def ask(installed: Api, llm: Any, sampling: Sampling, lora: LoraAdapter | None = None) -> Any:
    """The first output of a request, when it is done."""

    async def run() -> Any:
        output = installed.generate(llm, [1, 2], sampling, lora)
        async for _ in output:
            pass
        assert output.finished
        return output.outputs[0]

    return on_loop(run())
