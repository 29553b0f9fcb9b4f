"""Structured output: formats that a request asks its output to match, and the grammars that engines enforce them with.

::

    response_format, structured_outputs, guided_*  ──requested──►  Format  ──grammar──►  Grammar, for `engine.grammars`

`Format` (`formats`) is the one form between: tool calls that must come are formats, too, and formats are put together.
For the embedded engine `lark` and `schema` write it for llguidance; for TensorRT-LLM `guided_decoding` hands on what
its library honours to the letter. What neither does is refused by name; `keywords` lists the JSON schema keywords.

llguidance writes JSON on one line as `json.dumps` does, with ", " and ": ": small models go round in circles in free
white space, and tool calls are in that form in the prompts of most. TensorRT-LLM's xgrammar leaves white space free.
"""

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.request import requested
from openai_bls.output.structured.selection import grammar, has_excludes, has_structural_tags, has_style

__all__ = ["Format", "FormatError", "grammar", "has_excludes", "has_structural_tags", "has_style", "requested"]
