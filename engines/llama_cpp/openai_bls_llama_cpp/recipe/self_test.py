"""Self-test of a prepared llama.cpp engine: loaded as the server will load it, and asked together and one by one."""

from __future__ import annotations

import msgspec

from openai_bls.builder.prepared_engine import SKIP, loaded
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import AnswerRecord, BuildError, EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import answers
from openai_bls.engines.answers import Switch
from openai_bls_llama_cpp.record import LlamaCppRecord

DTYPE = "llama.cpp"
"""`AnswerRecord.dtype`: the file's own types, computed with as llama.cpp does."""


def self_test(prepared: Prepared, manifest: Manifest) -> LlamaCppRecord:
    """Record of the prepared engine with its golden answers, from a process that is started for them.

    Args:
        prepared: folders of the engine, which are full.
        manifest: manifest of the engine, without files.

    Raises:
        BuildError: it does not load, does not answer, or answers otherwise when it is asked for one thing at a time.
    """
    with loaded(prepared, manifest, EngineSettings()) as (engine, switch):
        try:
            together = answers.record(engine, switch, device="cpu", dtype=DTYPE)
            _require_same_alone(engine, switch, together)
        except EngineLoadError as error:
            raise BuildError(f"{error} ({SKIP})") from None
    return msgspec.structs.replace(LlamaCppRecord.of(manifest), answers=together)


def _require_same_alone(engine: Engine, switch: Switch, together: AnswerRecord) -> None:
    """Ask each prompt by itself, with nothing of it computed before.

    Raises:
        EngineLoadError: an answer is another one, by more than rounding.
    """
    token_ids, logprobs = [], []
    for prompt in together.prompts:
        engine.reset_prefix_cache()
        found = answers.ask(engine, switch, [prompt])
        token_ids.append(found.token_ids[0])
        logprobs.append(found.logprobs[0])
    if problem := answers.difference(together, token_ids, logprobs):
        raise EngineLoadError(
            f"the engine failed its self-test: sequences of one step do not get the answers that each gets alone "
            f"({problem})"
        )
