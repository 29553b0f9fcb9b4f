"""Docstrings of a struct's fields: the string below each, read from the source."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from typing import Any


def field_docs(cls: type[Any]) -> dict[str, str]:
    """Field name → docstring on one line, those of its bases included; empty where there is no source."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _of_module(base.__module__).get(base.__qualname__, {})
    return docs


@functools.cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Class → docs of the fields that it declares itself."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            docs[field.target.id] = " ".join(after.value.value.split())
    return docs
