"""docs/architecture.md lists the processes of `core/processes/machine.py`, and no module starts another."""

from __future__ import annotations

import ast

from openai_bls.core.processes.machine import PROCESSES
from tests.unit.docs.pages import ROOT, rows_of

PACKAGE = ROOT / "openai_bls"
STARTS = {"Popen", "fork", "execve", "execvp", "posix_spawn", "create_subprocess_exec"}
STARTS |= {"ScriptProcess", "WorkerPool", "DecoderPool"}
"""Calls and base classes that start a process which outlives the call, or become one."""
# They start what others name.
MEANS = {"core/processes/script_process.py", "core/processes/worker_pool.py", "pipeline/media/decoder_pool.py"}


def starts_a_process(source: str) -> bool:
    """Whether a module's source calls, or derives from, one of `STARTS`."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        found += [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
    names = {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in found}
    return bool(names & STARTS)


def test_the_page_lists_every_process() -> None:
    assert [row.cells for row in rows_of("docs/architecture.md", "The machine")] == [one[:5] for one in PROCESSES]


def test_every_module_that_starts_a_process_is_listed() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    named = {module for one in PROCESSES for module in one.starters}
    assert {name for name, source in modules.items() if starts_a_process(source)} - MEANS == named


def test_a_start_is_seen() -> None:
    assert starts_a_process("import subprocess\nwith subprocess.Popen(['x']) as p: ...")
    assert starts_a_process("class Decoder(ScriptProcess): ...")
    assert not starts_a_process("import subprocess\nsubprocess.run(['x'], check=True)")
