"""Catalogue of the attacks, and the process that they run in."""

from __future__ import annotations

from collections.abc import Callable

from tests.torture.attacks import audio, grammars, greeters, images, sequences, stored, wire
from tests.torture.attacks.alice import Alice, Outcome, Target

ATTACKS: dict[str, Callable[[Alice], None]] = {
    "chunks": wire.chunks,
    "trailers": wire.trailers,
    "header fields": wire.header_fields,
    "parts of forms": wire.form_parts,
    "boundaries of forms": wire.boundaries,
    "compressed bodies": wire.compressed,
    "upgrades": wire.upgrades,
    "pipelined requests": wire.pipelined,
    "items of a conversation": stored.conversation_items,
    "a large conversation": stored.large_conversation,
    "many conversations": stored.many_conversations,
    "stored responses": stored.stored_responses,
    "files": stored.files,
    "choices": sequences.choices,
    "prompts": sequences.prompts,
    "long prompts": sequences.long_prompts,
    "large answers": sequences.large_answers,
    "inputs": sequences.inputs,
    "carried": sequences.carried,
    "labels": sequences.labels,
    "large bodies": sequences.large_bodies,
    "grammars": grammars.grammars,
    "small grammars": grammars.small_grammars,
    "slow hosts of images": images.slow_hosts,
    "large pictures": images.large_pictures,
    "slow pictures": images.slow_pictures,
    "long audio": audio.long_audio,
    "templates": sequences.templates,
    "greeters": greeters.greeters,
    "batch files": stored.batch_files,
    "batches": stored.batches,
}
"""Name → attack, which ends when its time is over."""
AFTER = {"batches": stored.no_batches}
"""Name → what is done after an attack, so that the next one begins with nothing in progress."""
_AFTER_SECONDS = 20.0


def wanted(words: str) -> list[str]:
    """Attacks whose names have these words."""
    names = [name for name in ATTACKS if words in name]
    if not names:
        raise ValueError(f"no attack is called {words!r}: there are {', '.join(ATTACKS)}")
    return names


def attack(name: str, target: Target, seconds: float, seed: str) -> Outcome:
    """Run an attack."""
    alice = Alice(target, seconds, seed)
    ATTACKS[name](alice)
    return alice.outcome


def clean_up(name: str, target: Target) -> None:
    """Do what is to be done after an attack."""
    if name in AFTER:
        AFTER[name](Alice(target, _AFTER_SECONDS, ""))
