"""Loader of the null engine, which takes the checkpoint's vocabulary and limits where there is a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_bls import __version__
from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import EngineLoadError, Manifest, Milliseconds, NotNegative, checkpoint_dir
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.null.engine import SUPPORTED, NullEngine
from openai_bls.engines.null.record import NullSettings

_PREFIX = "null_"


class NullOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the environment that override the manifest's: fields of `NullSettings`, and more. All may come as
    strings."""

    max_batch_size: NotNegative = 0
    """Sequences in flight; 0 takes the manifest's."""
    null_token_ids: str = ""
    """Token ids that every answer repeats, separated by commas."""
    null_echo: bool | None = None
    """Answer with the tokens of the prompt."""
    null_step_delay_ms: Milliseconds | None = None
    """Milliseconds from one step to the next."""
    null_first_token_delay_ms: Milliseconds | None = None
    """Milliseconds from the start of a request to its first token."""
    null_fail_on_token_id: int | None = None
    """Token id at which a prompt is answered with an error."""
    null_crash_at_step: NotNegative | None = None
    """Number of the step in which the process of the engine crashes."""
    null_max_images: NotNegative = 0
    """Images that a prompt may hold; the answer is the same with them."""
    null_lora_names: str = ""
    """Names of made-up adapters, separated by commas."""
    null_script: str = ""
    """Path of a JSON file with turns of text to play, each to the prompts that it is for (`engines/null/script.py`)."""

    def over(self, base: NullSettings) -> NullSettings:
        """`base` with the fields that are set here.

        Raises:
            EngineLoadError: `null_token_ids` is not a list of ids.
        """
        given = {name.removeprefix(_PREFIX): value for name, value in msgspec.structs.asdict(self).items()}
        changes = {
            name: value
            for name, value in given.items()
            if name in NullSettings.__struct_fields__ and value is not None and value != ""
        }
        if self.null_token_ids:
            changes["token_ids"] = [part.strip() for part in self.null_token_ids.split(",")]
        try:
            return msgspec.convert(msgspec.structs.asdict(base) | changes, NullSettings, strict=False)
        except msgspec.ValidationError as error:
            raise EngineLoadError(f"bad null engine setting: {error}") from None


def load(
    version_dir: Path,
    manifest: Manifest | None,
    settings: EngineSettings,
    on_step: StepListener,
    options: NullOptions,
) -> Engine:
    """The null engine of `manifest`, or, without one, of nothing on disk.

    Raises:
        EngineLoadError: a token id that it is to emit is not in the vocabulary, or the script is none.
    """
    null = options.over(NullSettings.of(manifest) if manifest else NullSettings())
    lora_names = tuple(name.strip() for name in options.null_lora_names.split(",") if name.strip())
    info = EngineInfo(
        engine="null",
        model_name=manifest.model_name if manifest else "null",
        max_model_len=manifest.max_model_len if manifest else 8192,
        max_batch_size=options.max_batch_size or (manifest.max_batch_size if manifest else 256),
        vocab_size=null.vocab_size,
        eos_token_ids=(),
        supported=SUPPORTED + (("lora_name",) if lora_names else ()) + (("media",) if options.null_max_images else ()),
        input_modalities=("text", "image") if options.null_max_images else ("text",),
        max_images=options.null_max_images,
        version=f"null {__version__}",
        created=manifest.created if manifest else 0,
        max_logprobs=MAX_LOGPROBS,
        lora_names=lora_names,
    )
    if manifest and (manifest.files or (version_dir / manifest.checkpoint / "config.json").is_file()):
        facts = read_checkpoint(checkpoint_dir(version_dir, manifest))
        info = msgspec.structs.replace(
            info,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            pad_token_id=facts.pad_token_id,
            # It has no penalties, hence none by default.
            sampling_defaults=msgspec.structs.replace(facts.sampling_defaults, repetition_penalty=1.0),
        )
    if null.token_ids and max(null.token_ids) >= info.vocab_size:
        raise EngineLoadError(
            f"the null engine's token id {max(null.token_ids)} is outside the vocabulary of {info.vocab_size} tokens"
        )
    if not options.null_script:
        return NullEngine(info, null, on_step)
    return _scripted(version_dir, info, null, on_step, options)


def _scripted(
    version_dir: Path, info: EngineInfo, null: NullSettings, on_step: StepListener, options: NullOptions
) -> Engine:
    """The engine that plays a script, which it holds to grammars."""
    # Not at the top: they import numpy, which no other use of this engine needs.
    from openai_bls.engines.grammars import llguidance_backend
    from openai_bls.engines.null import script

    if null.token_ids or null.echo or info.lora_names:
        raise EngineLoadError(
            "null_script says what is answered: null_token_ids, null_echo and null_lora_names do not go with it"
        )
    tokenizer = version_dir / "tokenizer"
    grammars = llguidance_backend.load(tokenizer, info.vocab_size, info.eos_token_ids)
    if grammars is not None:
        info = msgspec.structs.replace(info, supported=(*info.supported, "grammar"), grammar_backend=grammars.backend)
    return NullEngine(info, null, on_step, script.load(Path(options.null_script), tokenizer, info, grammars).output_of)
