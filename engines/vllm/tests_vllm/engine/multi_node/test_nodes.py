"""Machines of one engine, by vLLM's names."""

from __future__ import annotations

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls_vllm.multi_node.nodes import NodeOptions, Nodes
from openai_bls_vllm.record import VllmRecord

RECORD = VllmRecord("0.32.0", tensor_parallel_size=2, pipeline_parallel_size=2)


def test_one_machine_is_no_argument() -> None:
    nodes = Nodes.of(NodeOptions(), RECORD)
    assert not nodes.several
    assert nodes.engine_args() == {}


def test_several_machines_are_vllms_arguments() -> None:
    options = NodeOptions(nnodes=2, node_rank=1, master_addr="first", master_port=31000, join_timeout_s=5)
    nodes = Nodes.of(options, RECORD)
    assert nodes.engine_args() == {
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "first",
        "master_port": 31000,
        "distributed_executor_backend": "mp",
    }
    assert (nodes.watch_port, nodes.join_timeout_s) == (31001, 5)


def test_what_the_build_has_named_holds_unless_an_option_says_otherwise() -> None:
    record = VllmRecord("0.32.0", 2, 2, extra_engine_args={"nnodes": 2, "master_addr": "built", "master_port": 40000})
    assert Nodes.of(NodeOptions(), record) == Nodes(2, 0, "built", 40000)
    other = Nodes.of(NodeOptions(nnodes=4, master_addr="named", master_port=41000), record)
    assert other == Nodes(4, 0, "named", 41000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (NodeOptions(nnodes=2, node_rank=2, master_addr="a"), "node_rank is 2, .* 0 to 1"),
        (NodeOptions(node_rank=1), "node_rank is 1, .* 0 to 0"),
        (NodeOptions(nnodes=2), "master_addr"),
        (NodeOptions(nnodes=3, master_addr="a"), "4 ranks"),
    ],
)
def test_values_that_do_not_fit(options: NodeOptions, says: str) -> None:
    with pytest.raises(EngineLoadError, match=says):
        Nodes.of(options, RECORD)
