"""Settings of the models: parsed once, frozen, refusing what they do not know.

Each comes from the `parameters` section of the model's config.pbtxt and may be overridden by the environment variable
`OPENAI_BLS_<NAME IN CAPITALS>`; secrets come from the environment alone, for a config file is no place for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

ENV_PREFIX = "OPENAI_BLS_"

# Parameters that the Python backend itself reads from config.pbtxt.
_BACKEND_PARAMETERS = {"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"}

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class SettingsError(Exception):
    """A setting that does not exist or has a bad value; the message is one line."""


class OpenAiBlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the model `openai_bls`."""

    http_host: str = "127.0.0.1"
    """Address that /v1 listens on; `0.0.0.0` for every network interface."""
    http_port: Port = 9000
    """Port of /v1; 0 turns it off."""
    model_aliases: str = "openai_bls"
    """Further names for the served model, separated by commas; if there are several, for the first."""
    tool_call_parser: str = "auto"
    """How the model writes tool calls (`text.formats`): `auto` goes by its chat template, `none` turns them off. With
    several engines: `tensorrt_llm=<format>,tensorrt_llm_small=<format>`."""
    reasoning_parser: str = "auto"
    """How the model writes what it thinks; likewise."""
    trust_chat_template: bool = False
    """Take `chat_template` from requests: it is a program that runs in `preprocessing`, in a sandbox, for as long as it
    likes."""
    max_concurrent_requests: Positive = 4096
    """Requests in progress in each instance; one more is answered 503."""
    max_request_bytes: Positive = 32 * 1024 * 1024
    """The largest body /v1 reads."""
    max_choices: Positive = 128
    """The most sequences (prompts × n) of one request."""
    sender_threads: Positive = 4
    """Threads that send responses on Triton's endpoints."""
    keep_alive_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """Seconds after which an idle /v1 stream gets a comment line, so that proxies keep it open."""
    api_key: str = ""
    """If set, /v1 wants it as `Authorization: Bearer <key>`. From OPENAI_BLS_API_KEY only."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """`model_aliases`, split."""
        return tuple(name.strip() for name in self.model_aliases.split(",") if name.strip())

    @staticmethod
    def format_for(setting: str, engine: str) -> str:
        """What `tool_call_parser` or `reasoning_parser` says of the Triton model `engine`.

        Raises:
            SettingsError: the setting mixes both of its forms.
        """
        parts = [part.strip() for part in setting.split(",") if part.strip()]
        if all("=" not in part for part in parts) and len(parts) == 1:
            return parts[0]
        named = dict(part.partition("=")[::2] for part in parts if "=" in part)
        if len(named) != len(parts):
            raise SettingsError(f"{setting!r} is neither one format nor a list of <engine model>=<format>")
        return named.get(engine, "auto")


class PreprocessingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the model `preprocessing`."""

    tokenizer_threads: Positive = 4
    """Prompts of `openai_bls` that are prepared at the same time, if they are long or come together."""


class TensorRtLlmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the model `tensorrt_llm`."""

    exclude_input_in_output: bool = True
    """Whether a whole (not streamed) answer leaves the prompt's ids out; a request may say otherwise."""


_ENVIRONMENT_ONLY = frozenset({"api_key"})

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


def engine_overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """Engine options from the environment: `OPENAI_BLS_ENGINE` and `OPENAI_BLS_ENGINE_<OPTION>` (`engine.select`)."""
    prefix = ENV_PREFIX + "ENGINE"
    overrides = {
        name.removeprefix(prefix + "_").lower(): value
        for name, value in environ.items()
        if name.startswith(prefix + "_")
    }
    if prefix in environ:
        overrides["engine"] = environ[prefix]
    return overrides


def load(cls: type[SettingsT], parameters: Mapping[str, str], environ: Mapping[str, str]) -> SettingsT:
    """Settings of class `cls` from config.pbtxt `parameters`, overridden by `environ`.

    Raises:
        SettingsError: an unknown name or a bad value; the message says which and what is allowed.
    """
    names = cls.__struct_fields__
    values = {key: value for key, value in parameters.items() if key not in _BACKEND_PARAMETERS}
    for key in values:
        if key not in names or key in _ENVIRONMENT_ONLY:
            known = ", ".join(name for name in names if name not in _ENVIRONMENT_ONLY)
            raise SettingsError(f"unknown parameter {key!r} in config.pbtxt; known are {known}")
    for name in names:
        override = environ.get(ENV_PREFIX + name.upper())
        if override is not None:
            values[name] = override
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"bad parameter value: {error}") from None
