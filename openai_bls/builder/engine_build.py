"""Build of an engine, as its plug-in describes it: options of the command line, choice by `auto`, and recipe."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.recipe import Recipe, Report
from openai_bls.builder.targets.selection import BuildTarget
from openai_bls.core.manifest import BuildError
from openai_bls.engines import registry
from openai_bls.engines.plugin import Lazy

COMMON = frozenset(
    (
        "model",
        "revision",
        "model_repository",
        "name",
        "engine",
        "served_model_name",
        "trust_remote_code",
        "force",
        "dtype",
        "max_seq_len",
        "max_batch_size",
        "dry_run",
    )
)
"""Options that have a meaning with every engine."""


class RecipeRequest(NamedTuple):
    """Engine that is asked for, and what it is built from."""

    options: BuildOptions
    checkpoint: Checkpoint
    model_name: str
    target: BuildTarget
    report: Report


class Wanted(NamedTuple):
    """Facts by which `--engine auto` chooses."""

    gguf: bool
    """The model is a GGUF file."""
    given: Collection[str]
    """Names of the options that were given, with underscores."""
    gpus: list[str]
    """Names of this machine's GPUs."""


class Offer(NamedTuple):
    """Answer of an engine to `Wanted`."""

    rank: int
    """The engine of the highest rank is built; 0 declines."""
    reason: str
    """Reason for the rank, as the end of a sentence; empty if there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class EngineBuild:
    """Build of one kind of engine."""

    recipe: Lazy[Callable[[RecipeRequest], Recipe]]
    """Maker of the recipe; raises `BuildError` or `EngineLoadError`."""
    accepts: frozenset[str] = frozenset()
    """Names of options beyond `COMMON` that have a meaning, with underscores."""
    add_arguments: Lazy[Callable[[argparse.ArgumentParser], None]] | None = None
    """Adds the options that only this engine has."""
    refuse: Lazy[Callable[[Collection[str]], None]] | None = None
    """Refuses options of other engines, by their names, in a sentence that says what to give instead; for those that it
    lets pass there is a general one."""
    read_options: Lazy[Callable[[dict[str, Any]], msgspec.Struct]] | None = None
    """`BuildOptions.own`, from the values of the command line by their names; what it takes out of them is no option of
    the rest. Raises `BuildError`."""
    offer: Lazy[Callable[[Wanted], Offer]] | None = None
    """Answer to `--engine auto`; None is built by its name only."""
    gguf: bool = False
    """True for a recipe that takes a GGUF file."""
    plan: Lazy[Callable[[BuildOptions, str | None, str | None], tuple[str, int]]] | None = None
    """Plan of --dry-run in words and its exit status, of the options, a GPU's name and its memory."""
    takes_long: bool = False
    """An engine that is there is not built anew unasked."""
    packages: tuple[str, ...] = ()
    """Packages whose versions the manifest records."""


def engine_build(engine: str) -> EngineBuild:
    """Build of the engine of this name.

    Raises:
        EngineLoadError: no such engine is installed.
        BuildError: nothing builds it.
    """
    part = registry.plugin(engine).build
    found = None if part is None else part()
    if not isinstance(found, EngineBuild):
        raise BuildError(f"the engine {engine} is built by other means")
    return found


def engine_builds() -> dict[str, EngineBuild]:
    """Builds of all engines that are installed, by the engines' names."""
    return {one.name: engine_build(one.name) for one in registry.plugins() if one.build is not None}


def choose_engine(wanted: Wanted) -> tuple[str, str]:
    """The engine that `--engine auto` stands for, and why.

    Raises:
        BuildError: no engine that is installed offers to take the model.
    """
    offers = {name: build.offer()(wanted) for name, build in engine_builds().items() if build.offer is not None}
    declined = "; ".join(offer.reason for offer in offers.values() if offer.rank == 0 and offer.reason)
    best = max(offers, key=lambda name: offers[name].rank, default="")
    if not best or not offers[best].rank:
        raise BuildError(f"no engine that is installed takes this model{': ' * bool(declined)}{declined}")
    return best, f"engine {best}: {offers[best].reason or declined}".removesuffix(": ")


def listed(names: Iterable[str]) -> str:
    """Names as in a sentence: `a, b and c`."""
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def planner(engine: str) -> tuple[str, EngineBuild]:
    """The engine that --dry-run plans, and its build.

    Args:
        engine: value of --engine; `auto` is the one that has something to plan.

    Raises:
        BuildError: there is none, or nothing to plan.
    """
    able = {name: build for name, build in engine_builds().items() if build.plan is not None}
    known = listed(able) or "none that is installed"
    if engine != "auto" and engine not in able:
        raise BuildError(f"--dry-run plans engines of {known}: the engine {engine} has nothing to plan")
    if not able:
        raise BuildError(f"--dry-run plans engines of {known}")
    chosen = next(iter(able)) if engine == "auto" else engine
    return chosen, able[chosen]


def refuse_foreign(engine: str, given: Collection[str]) -> None:
    """Refuse options that have no meaning with an engine.

    Args:
        engine: name of the engine.
        given: names of options, with underscores.

    Raises:
        BuildError: the first such option, and what it is for or what to give instead.
    """
    build = engine_build(engine)
    if build.refuse is not None:
        build.refuse()(given)
    for name in given:
        if name not in COMMON | build.accepts:
            able = [other for other, one in engine_builds().items() if name in one.accepts]
            option = "--no-self-test" if name == "self_test" else f"--{name.replace('_', '-')}"
            raise BuildError(
                f"{option} is for --engine {listed(able)}: the engine {engine} does not know it"
                if able
                else f"{option} is for no engine that is installed"
            )
