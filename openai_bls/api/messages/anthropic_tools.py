"""Tools of Anthropic's that a client runs and declares by their type alone, as functions.

Source: Anthropic's documentation of the bash, text editor and memory tools, and the types of its Python SDK 2.12.
"""

from __future__ import annotations

import re
from typing import Any

_TEXT = {"type": "string"}
_LINES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_PATH = {**_TEXT, "description": "Path of the file or directory."}

Schema = dict[str, Any]


def _commands(required: list[str], commands: list[str], **properties: Schema) -> Schema:
    command = {**_TEXT, "enum": commands}
    return {"type": "object", "properties": {"command": command, **properties}, "required": ["command", *required]}


_BASH = (
    "Runs a command in a bash session that keeps its state, and returns its output.",
    {
        "type": "object",
        "properties": {
            "command": {**_TEXT, "description": "The command; required unless `restart` is true."},
            "restart": {"type": "boolean", "description": "Restart the session instead."},
        },
    },
)
_EDITING: dict[str, Schema] = {
    "view_range": {**_LINES, "description": "First and last line for `view`; -1 is the end of the file."},
    "file_text": {**_TEXT, "description": "Content of the file for `create`."},
    "old_str": {**_TEXT, "description": "Text to replace for `str_replace`; it must occur exactly once."},
    "new_str": {**_TEXT, "description": "Text to put in its place."},
    "insert_line": {"type": "integer", "description": "Line after which `insert` inserts; 0 is the beginning."},
}
_INSERT_TEXT = {**_TEXT, "description": "Text for `insert`."}
_EDITOR = "Views, creates and edits text files."
_EDITS = ["view", "create", "str_replace", "insert"]
_OLD_EDITOR = (_EDITOR, _commands(["path"], [*_EDITS, "undo_edit"], path=_PATH, **_EDITING))
_NEW_EDITOR = (_EDITOR, _commands(["path"], _EDITS, path=_PATH, **_EDITING, insert_text=_INSERT_TEXT))
_MEMORY = (
    "Keeps files below /memories from one conversation to the next: views, creates, edits, deletes and renames them.",
    _commands(
        [],
        [*_EDITS, "delete", "rename"],
        path=_PATH,
        **_EDITING,
        insert_text=_INSERT_TEXT,
        old_path={**_TEXT, "description": "Path to `rename`."},
        new_path={**_TEXT, "description": "Its new path."},
    ),
)

_KINDS: tuple[tuple[re.Pattern[str], tuple[str, Schema]], ...] = (
    (re.compile(r"bash_\d{8}"), _BASH),
    (re.compile(r"text_editor_(20241022|20250124)"), _OLD_EDITOR),
    (re.compile(r"text_editor_\d{8}"), _NEW_EDITOR),
    (re.compile(r"memory_\d{8}"), _MEMORY),
)
_LEFT_OUT = re.compile(
    r"(web_search|web_fetch|code_execution|tool_search_tool_(bm25|regex)|advisor|computer|computer_toolset"
    r"|browser_toolset)_\d{8}|tool_search_tool_(bm25|regex)|mcp_toolset"
)


def known_tool(kind: str) -> tuple[str, Schema] | None:
    """Description and schema of the input of a tool of this type; None if there is none."""
    return next((known for pattern, known in _KINDS if pattern.fullmatch(kind)), None)


def is_left_out(kind: str) -> bool:
    """True for a tool that Anthropic's servers run, or whose calls the model was trained for: it is not offered."""
    return _LEFT_OUT.fullmatch(kind) is not None
