"""Options of `build` as `serve` takes them: those of the engine that is built before the server starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from openai_bls.commands.building import options as build_options

_LEFT_OUT = {"model", "model_repository", "engine", "name", "remove", "force", "dry_run", "gpu", "gpu_memory"}
"""Options that `serve` has itself, and those that are about no engine that it serves."""
_SHOWN = {
    "revision",
    "served_model_name",
    "trust_remote_code",
    "dtype",
    "max_seq_len",
    "max_batch_size",
    "tp_size",
    "quant",
    "extra_engine_args",
    "lora_dir",
    "max_tokens_in_kv_cache",
}
"""Options with a line in the help of `serve`; the others have theirs in that of `build`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. Only what was given is in the result."""
    group = parser.add_argument_group(
        "the engine, where one is built",
        "The options of `build`, of which these are the usual ones; `openai-bls build --help` has them all. With one of"
        " them an engine that is there is built again if it was built otherwise.",
    )
    for action in _actions():
        if action.dest not in _SHOWN:
            action.help = argparse.SUPPRESS
        group._add_action(action)


def words(options: argparse.Namespace) -> list[str]:
    """The options of `build` in a command line of `serve`, as words for `build`."""
    found: list[str] = []
    for action in _actions():
        if action.dest in options:
            found += _words(action, getattr(options, action.dest))
    return found


def _actions() -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    build_options.add_arguments(parser)
    return [action for action in parser._actions if action.dest not in _LEFT_OUT]


def _words(action: argparse.Action, value: object) -> list[str]:
    option = action.option_strings[0]
    if isinstance(action, argparse.BooleanOptionalAction):
        return [action.option_strings[0 if value else 1]]
    if action.nargs == 0:
        return [option]
    if isinstance(value, bool):
        return [f"{option}={'enable' if value else 'disable'}"]
    values: Sequence[object] = value if isinstance(value, list) else [value]
    return [f"{option}={one}" for one in values]
