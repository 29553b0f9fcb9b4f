"""Recipe of a llama.cpp engine: the GGUF file as it is, in a separate process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from openai_bls.builder.engine_build import RecipeRequest
from openai_bls.builder.placing.files import place
from openai_bls.builder.recipe import max_model_len
from openai_bls.builder.targets.folders import Prepared
from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.checkpoint import GGUF_NAME, CheckpointFacts
from openai_bls.core.manifest import BuildError, EngineLoadError, FileRecord, KvCacheSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs
from openai_bls_llama_cpp import library, memory
from openai_bls_llama_cpp.model import MAX_PLACES
from openai_bls_llama_cpp.recipe.self_test import self_test
from openai_bls_llama_cpp.record import LlamaCppRecord
from openai_bls_llama_cpp.vocabulary import token_ids


class LlamaCppRecipe:
    """See `Recipe`.

    Raises:
        BuildError: the source is no GGUF file, llama.cpp is not installed, or an option means nothing for it.
    """

    def __init__(self, request: RecipeRequest) -> None:
        options, checkpoint, model_name, _, report = request
        source, facts = checkpoint.folder, checkpoint.facts
        self._options, self._source, self._facts, self._report = options, source, facts, report
        if not (source / GGUF_NAME).is_file():
            raise BuildError(f"--engine llama_cpp is for GGUF files, and {options.model} is none")
        if problem := library.problem():
            raise BuildError(f"--engine llama_cpp: {problem}")
        if options.batch_size > MAX_PLACES:
            raise BuildError(f"--max-batch-size {options.batch_size}: llama.cpp holds up to {MAX_PLACES}")
        longest = max_model_len(options, facts)
        cache = KvCacheSettings(max_tokens_in_kv_cache=options.max_tokens_in_kv_cache)
        if options.max_model_len is None and not options.max_tokens_in_kv_cache:
            longest = self._fitting(longest, facts, cache)
        alone = Manifest(
            engine="llama_cpp",
            model_name=model_name,
            max_model_len=longest,
            max_batch_size=1,
            created=0,
            kv_cache=cache,
            builder={library.PACKAGE: library.RELEASE},
            record=LlamaCppRecord(version=library.RELEASE).fields(),
        )
        self.manifest = msgspec.structs.replace(alone, max_batch_size=self._places(alone))
        self.configs = render_configs(engine_model(EngineSettings(), suffix=options.name))
        # What fits depends on what else runs, and is no reason to build again.
        built = msgspec.structs.replace(alone, model_name="", max_model_len=options.max_model_len or 1)
        self.key = repr((built, options.max_batch_size, options.self_test))

    def _places(self, manifest: Manifest) -> int:
        """Sequences at once that are asked for, or the default."""
        if self._options.max_batch_size is not None:
            return self._options.max_batch_size
        try:
            return memory.default_places(manifest, self._facts, self._source / GGUF_NAME)
        except EngineLoadError:
            return memory.PLACES_IN_ONE_CACHE

    def _fitting(self, longest: int, facts: CheckpointFacts, cache: KvCacheSettings) -> int:
        """`longest`, or half of what there is memory for, if that is less."""
        fits = memory.fitting_tokens(facts, self._source / GGUF_NAME, cache.free_memory_fraction)
        if fits is None or longest <= fits:
            return longest
        found = max(1, fits // 2 // 64 * 64)
        self._report(
            f"context of {found:,} tokens instead of {longest:,}, for whose KV cache there is no memory "
            "(--max-model-len for another)"
        )
        return found

    def _check_tokenizer(self, folder: Path) -> None:
        """Raise `BuildError` if the tokenizer makes other token ids than llama.cpp, which are those of the model."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        found = (tokenizer.encode(text, add_special_tokens=False).ids for text in SAMPLES)
        for text, ids, wanted in zip(SAMPLES, found, token_ids(self._source / GGUF_NAME, SAMPLES), strict=True):
            if ids != wanted:
                problem = f"{text!r} is {ids} by the tokenizer that transformers makes, and {wanted} by llama.cpp"
                if not self._options.force:
                    raise BuildError(f"{self._options.model}: {problem} (--force builds it all the same)")
                self._report(f"in spite of --force: {problem}")
                return

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """See `Recipe`."""
        self._check_tokenizer(prepared.tokenizers[0])
        self._report(f"weights: the GGUF file as it is, for llama.cpp {library.PACKAGE} {library.RELEASE}")
        place(self._source / GGUF_NAME, prepared.checkpoint / GGUF_NAME)
        made = self.manifest
        with contextlib.suppress(EngineLoadError):  # The load says so, on the machine that is to hold it.
            cache = memory.kv_cache(made, self._facts, self._source / GGUF_NAME)
            self._report(f"KV cache: {memory.described(cache, made.max_batch_size, self._facts)}")
        if not self._options.self_test:
            return {}
        self._report("self-test")
        record = self_test(prepared, self.manifest)
        self.manifest = msgspec.structs.replace(self.manifest, record=record.fields())
        assert record.answers is not None
        self._report(
            f"self-test: llama.cpp answers {len(record.answers.prompts)} prompts together as it does one by one"
        )
        self._report(
            "llama.cpp rounds what it multiplies with quantized weights: its numbers are its own, and not those of "
            "transformers"
        )
        return {}
