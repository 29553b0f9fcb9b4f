"""Machines of one engine, by vLLM's names: how many, which one this is, and where the first one is reached."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openai_bls.core.manifest import EngineLoadError, NotNegative
from openai_bls_vllm.record import VllmRecord

Port = Annotated[int, msgspec.Meta(ge=1, le=65534)]
DEFAULT_PORT = 29501


class NodeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of an engine's process that say which machine of the engine it runs on, by vLLM's names."""

    nnodes: NotNegative = 0
    """Machines that run the engine together; 0 is as the engine was built, else one."""
    node_rank: NotNegative = 0
    """Number of this machine; 0 is the first, which has the scheduler and the engine's socket."""
    master_addr: str = ""
    """Name or address of the first machine."""
    master_port: Port | None = None
    """Port of torch.distributed on the first machine, 29501 by default; the next one is taken, too."""
    join_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    """Seconds that machines wait for each other: images are pulled, and nodes are added to a cluster, meanwhile."""


class Nodes(msgspec.Struct, frozen=True):
    """Machines of one engine, checked."""

    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = ""
    master_port: int = DEFAULT_PORT
    join_timeout_s: float = 1800.0

    @classmethod
    def of(cls, options: NodeOptions, record: VllmRecord) -> Nodes:
        """The machines that the options and the build name together.

        Raises:
            EngineLoadError: they do not fit each other or the engine; one sentence.
        """
        built = record.extra_engine_args
        found = cls(
            nnodes=options.nnodes or int(built.get("nnodes", 1)),
            node_rank=options.node_rank,
            master_addr=options.master_addr or str(built.get("master_addr", "")),
            master_port=options.master_port or int(built.get("master_port", DEFAULT_PORT)),
            join_timeout_s=options.join_timeout_s,
        )
        found.check(record.world_size)
        return found

    @property
    def several(self) -> bool:
        """True if there is more than one machine."""
        return self.nnodes > 1

    @property
    def watch_port(self) -> int:
        """Port of the first machine at which the others tell that they are there."""
        return self.master_port + 1

    def engine_args(self) -> dict[str, Any]:
        """Fields of `AsyncEngineArgs`; empty for one machine."""
        if not self.several:
            return {}
        return {
            "nnodes": self.nnodes,
            "node_rank": self.node_rank,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "distributed_executor_backend": "mp",
        }

    def check(self, world_size: int) -> None:
        """Refuse values that do not fit each other or the engine.

        Args:
            world_size: processes of vLLM that compute, over all machines.

        Raises:
            EngineLoadError: one sentence.
        """
        if self.node_rank >= self.nnodes:
            raise EngineLoadError(
                f"node_rank is {self.node_rank}, and the machines are numbered from 0 to {self.nnodes - 1} (nnodes)"
            )
        if self.several and not self.master_addr:
            raise EngineLoadError(f"nnodes is {self.nnodes}: give master_addr, the first machine's name or address")
        if world_size % self.nnodes:
            raise EngineLoadError(
                f"the engine has {world_size} ranks (tensor_parallel_size times pipeline_parallel_size), which cannot "
                f"be divided evenly among {self.nnodes} machines (nnodes)"
            )
