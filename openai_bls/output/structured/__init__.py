"""Structured output: what a request asks its output to match, and the grammar that an engine enforces it with.

::

    response_format, structured_outputs, guided_*  ──requested──►  Format  ──grammar──►  Grammar, for `engine.grammars`

`Format` (`formats`) is the one form between: tool calls that must come are formats, too, and formats are put together.
`grammar` makes sure that a library honours all of a format, and refuses it by name otherwise; `keywords` says what
becomes of each JSON schema keyword.

JSON is written on one line as `json.dumps` writes it, with ", " and ": ", by either library: free white space is where
small models go round in circles, and tool calls are in that form in the prompts of most.
"""

from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.request import requested
from openai_bls.output.structured.selection import grammar

__all__ = ["Format", "grammar", "requested"]
