"""The contenders: which models a server loads, with which environment, and the targets it offers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from benchmarks.clients.target import Dialect, Target, grpc_target, http_target
from benchmarks.support.machine import triton_version
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.null.record import NullSettings
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import RunningServer, copy_models, run_server

MODELS = Path(__file__).parent / "model_repository"
MAX_MODEL_LEN = 65_536
"""Tokens of the null engine's context: room for a prompt of 32k."""
_MAX_BATCH_SIZE = 8_192
_START_TIMEOUT_S = 90.0
_EXIT_TIMEOUT_S = 5
_TOKENS = 64
_WORD = re.compile(r"Ġ[a-z]{2,8}")  # as byte-level tokenizers write a space and a word


@dataclass(frozen=True)
class Contender:
    """One of those who are compared."""

    name: str
    models: tuple[str, ...]
    """In `MODELS`; none for this project's own repository."""
    paths: tuple[str, ...]
    """The ways in, by the names that tables show."""
    dialect: Dialect = "openai"
    tls: bool = False
    """/v1 speaks HTTPS."""

    def label(self, path: str) -> str:
        """The name of a path in tables."""
        return f"{self.name} {path}"


HTTP, GRPC, V1 = "generate_stream", "grpc", "/v1 chat"
BARE = Contender("bare", ("bare",), (HTTP, GRPC), "ids")
ENSEMBLE = Contender("ensemble", ("ensemble", "preprocessing", "bare", "postprocessing"), (HTTP, GRPC), "text")
OURS = Contender("ours", (), (V1, HTTP, GRPC))
OURS_TLS = Contender("ours_tls", (), (V1,), tls=True)
CONTENDERS = {one.name: one for one in (BARE, ENSEMBLE, OURS)}


@dataclass(frozen=True)
class Setup:
    """What all servers of a run have in common."""

    repository: Path
    """This project's own, prepared by `null_repository`."""
    tokenizer: Path
    """tokenizer.json."""
    token_ids: tuple[int, ...]
    """What every engine emits, in a cycle."""


@dataclass(frozen=True)
class Running:
    """A contender's server."""

    targets: dict[str, Target]
    """By path."""
    pid: int | None
    """Of the server; None if it is not on this machine."""
    version: str = ""
    """Triton's."""
    server: RunningServer | None = None
    """None for a server that is not started here."""

    def kill(self) -> None:
        """Do not wait for requests: the server is broken."""
        if self.server is not None:
            self.server.process.kill()


def prepare(source: Path, scratch: Path) -> Setup:
    """What a run needs, from the model repository `source`; files go to `scratch`.

    Raises:
        LaunchError: the repository has no tokenizer, or one of whose tokens no words are known.
    """
    found = sorted(source.glob("preprocessing/*/tokenizer/tokenizer.json"))
    token_ids = word_token_ids(source)
    if not found or not token_ids:
        raise LaunchError("the model repository has no tokenizer to benchmark with: run `make engine`")
    repository = scratch / "model_repository"
    null_repository(source, repository, found[-1], token_ids)
    return Setup(repository, found[-1], tuple(token_ids))


def word_token_ids(repository: Path) -> list[int]:
    """The first 64 tokens that are a space and a word, so that each makes a text event and no character is split.

    Empty if the tokenizer in `repository` is of another kind.
    """
    files = sorted(repository.glob("preprocessing/*/tokenizer/tokenizer.json"))
    vocabulary = msgspec.json.decode(files[-1].read_bytes())["model"].get("vocab") if files else None
    if not isinstance(vocabulary, dict):
        return []
    return sorted(token_id for token, token_id in vocabulary.items() if _WORD.fullmatch(token))[:_TOKENS]


def null_repository(source: Path, target: Path, tokenizer: Path, token_ids: list[int]) -> None:
    """A copy of this project's model repository with the null engine, which takes long prompts and many requests."""
    copy_models(source, target, tokenizers=True)
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    manifest = Manifest(
        engine="null",
        model_name="null",
        max_model_len=MAX_MODEL_LEN,
        max_batch_size=_MAX_BATCH_SIZE,
        created=0,
        record=NullSettings(token_ids=tuple(token_ids), vocab_size=vocabulary).fields(),
    )
    write_manifest(target / "tensorrt_llm" / "1", manifest)


@contextlib.contextmanager
def running(contender: Contender, setup: Setup, step_delay_ms: float) -> Iterator[Running]:
    """Run a server with `contender` alone.

    Args:
        step_delay_ms: time from one engine step to the next; 0 is as fast as possible.

    Raises:
        LaunchError: it did not start, or left a process behind.
    """
    if contender.models:
        repository = MODELS
        env = {
            "CONTENDER_TOKENIZER": str(setup.tokenizer),
            "CONTENDER_TOKEN_IDS": ",".join(map(str, setup.token_ids)),
            "CONTENDER_STEP_DELAY_MS": f"{step_delay_ms:g}",
        }
        args = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in contender.models)]
    else:
        repository = setup.repository
        env = {"OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": f"{step_delay_ms:g}"}
        args = []
    if contender.tls:
        env["OPENAI_BLS_SSL_CERTFILE"] = str(_certificate(setup.repository.parent))
    # Requests that hang must not hold the run up.
    args.append(f"--exit-timeout-secs={_EXIT_TIMEOUT_S}")
    with run_server(repository, env, args, timeout=_START_TIMEOUT_S) as server:
        targets = {path: _target(contender, path, server) for path in contender.paths}
        yield Running(targets, server.pid, triton_version(server.http_url), server)


def _certificate(folder: Path) -> Path:
    """A file with a certificate, of an ECDSA key, and the key."""
    # Here, since it is the tests' package.
    import trustme

    made = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    path = folder / "tls.pem"
    made.private_key_and_cert_chain_pem.write_to_path(path)
    return path


def _target(contender: Contender, path: str, server: RunningServer) -> Target:
    if path == V1:
        return http_target("chat", server.openai_url, model="openai_bls")
    # The dialects' models: one takes ids, the others text; ours is openai_bls.
    model = contender.models[0] if contender.models else "openai_bls"
    if path == HTTP:
        return http_target(
            "generate_stream", server.http_url, model="openai_bls", triton_model=model, dialect=contender.dialect
        )
    return grpc_target(server.grpc_url, model="openai_bls", triton_model=model, dialect=contender.dialect)
