"""Work of a request in a thread is done in turns of its API key: asyncio's default threads are few, and no key's."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "openai_bls"

OF_NO_KEY = {
    # The server's own, one at a time.
    "api/batches/runner.py": 3,
    "pipeline/metrics/metrics.py": 1,
    "triton_models/server/grpc_streams.py": 1,
    "triton_models/server/model_index.py": 3,
    "api/http/body_budget.py": 1,
    # Pages that are made once, or one at a time; they need no key.
    "api/openapi/routes.py": 2,
    "api/pages/routes.py": 2,
    # For admins.
    "api/lora/endpoints.py": 1,
    # Milliseconds, whatever is joined: a body is bounded.
    "pipeline/joining.py": 1,
}
"""Module → its calls that take a default thread."""


def takes_default_thread(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "run_in_executor":
        return isinstance(node.args[0], ast.Constant)
    return name in {"to_thread", "run_in_threadpool", "iterate_in_threadpool", "run_sync", "open_file"}


def test_default_threads_are_for_work_of_no_key() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        count = sum(map(takes_default_thread, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
        if count:
            found[path.relative_to(PACKAGE).as_posix()] = count
    assert found == OF_NO_KEY
