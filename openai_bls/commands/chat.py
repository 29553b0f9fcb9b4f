"""Command `chat`: a chat with a running server in the terminal."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from openai_bls.terminal.connection import add_arguments as add_connection
from openai_bls.terminal.connection import add_certificates


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Chat with a running server. Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves;"
        " /help lists the commands. Where standard input or output is no terminal, the whole of the input is one"
        " question, and its answer goes out as plain text."
    )
    add_connection(parser)
    add_certificates(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--tools", type=Path, metavar="FILE", help="a JSON list of tools that the model may call")
    parser.add_argument("--temperature", type=float, metavar="X", help="of the sampling (default: the server's)")
    parser.add_argument("--top-p", type=float, metavar="X", help="share of the probability that is sampled from")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="limit of each answer")
    parser.add_argument("--seed", type=int, metavar="N", help="of the sampling")


def run(options: Namespace) -> int:
    """Chat until the end of the input."""
    # Here, since help and completion need none of its packages.
    from openai_bls.terminal.chat import run as chat

    return chat(options)
