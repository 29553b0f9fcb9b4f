"""Settings of the Triton models: parsed once, frozen, strict.

Each comes from the `parameters` section of the model's config.pbtxt and may be overridden by the environment variable
`OPENAI_BLS_<NAME IN CAPITALS>`; secrets come from the environment alone, for a config file is no place for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from openai_bls.core.guide_names import SETTINGS
from openai_bls.core.manifest import NotNegative, Positive
from openai_bls.core.nearest import meant_or_known

ENV_PREFIX = "OPENAI_BLS_"

# Parameters that the Python backend itself reads from config.pbtxt.
BACKEND_PARAMETERS = {"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"}

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
# A folder's name that Triton takes as a model; never `openai_bls`, which would call itself without end.
GuardName = Annotated[str, msgspec.Meta(pattern=r"^(?!openai_bls$)[A-Za-z0-9_.-]*$")]


# Names of hosts, each with a port if it has a colon, separated by commas.
_HOST = r"(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?"
HostNames = Annotated[str, msgspec.Meta(pattern=rf"^ *({_HOST} *(, *{_HOST} *)*)?$")]


class SettingsError(Exception):
    """A setting that does not exist or has a bad value; the message is one line."""


class OpenAiBlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the model `openai_bls`."""

    http_host: str = "127.0.0.1"
    """Address of /v1; `0.0.0.0` is every network interface."""
    http_port: Port = 9000
    """Port of /v1; 0 turns it off."""
    http_ui: bool = True
    """Serve web pages on that port: the playground at `/`, and the reference at `/docs`."""
    model_aliases: str = "openai_bls"
    """Further names for the served model, separated by commas; if there are several, for the first."""
    tool_call_parser: str = "auto"
    """Tool-call format (`output.detect`): a name, `auto` (by the chat template) or `none` (off). For several engines:
    `tensorrt_llm=<format>,tensorrt_llm_small=<format>`."""
    reasoning_parser: str = "auto"
    """Reasoning format of the model, in the same forms."""
    trust_chat_template: bool = False
    """Take `chat_template` from requests: it is a program that runs in a sandbox, in a process for at most 2 s of CPU
    time and 512 MiB of memory."""
    max_concurrent_requests: Positive = 4096
    """Requests in progress in each instance, those that wait for an engine included; one more is answered 429. Of
    several API keys none takes more than it leaves free."""
    max_waiting_requests: Positive = 4096
    """Requests that wait for an engine in each instance; one more is answered 429."""
    max_waiting_tokens: Positive = 2 * 1024 * 1024
    """Prompt tokens of the requests that wait for an engine in each instance; one more request is answered 429."""
    max_waiting_requests_per_key: Positive = 2048
    """Requests of one named API key that wait for an engine in each instance; one more is answered 429."""
    max_waiting_tokens_per_key: Positive = 1024 * 1024
    """Prompt tokens of the waiting requests of one named API key in each instance; one more request is answered 429."""
    reserved_places_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.0625
    """Share of an engine's places, rounded down, that an API key with running requests leaves free for keys without
    any. Counts where there are several keys."""
    max_request_bytes: Positive = 32 * 1024 * 1024
    """The largest request, in bytes: a body on /v1, tensors and parameters on Triton's endpoints."""
    max_request_values: Positive = 320 * 1024
    """The most values of a JSON body: items of arrays, token ids too, and values of objects. To decode so many holds up
    other requests for up to a tenth of a second."""
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """Treatment of fields of a request that the API does not have: a 400 that names the field, or taken without effect
    and named in the response header `openai-bls-ignored` and in the log."""
    stop_strings: Literal["answer", "output"] = "answer"
    """Text that the `stop` of a chat is searched in: the answer alone, or all output, thoughts and arguments of calls
    too, as vLLM has it."""
    max_body_bytes_in_flight: Positive = 256 * 1024 * 1024
    """Bytes of bodies that /v1 reads or prepares, of answers in the making and of unread ones, as many each; beyond it
    503, but for small ones (16 KiB). Of several keys none takes more than it leaves free."""
    max_connections: Positive = 8192
    """Open connections of /v1 in each instance, at most what the limit of open files allows; further ones are answered
    503."""
    head_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds in which the head of a request must come, from its first byte; else 408."""
    body_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """Seconds in which a body must bring 32 KiB or end, time and again; else 408."""
    max_choices: Positive = 128
    """The most sequences (prompts × n) of one request."""
    sender_threads: Positive = 4
    """Threads that send responses on Triton's endpoints."""
    triton_metrics: bool = True
    """Show the metrics of /v1 on Triton's metrics port too."""
    gateway_metrics: Literal["nvidia", "vllm", "both", "none"] = "nvidia"
    """Names under which gateways read the engines' load: those of TensorRT-LLM's backend for Triton (`nv_trt_llm_*`),
    vLLM's (`vllm:*`), which tell of adapters too, both or none."""
    lora_root: str = ""
    """Directory below which /v1/load_lora_adapter finds adapters; empty turns it and /v1/unload_lora_adapter off."""
    batches_dir: str = ""
    """Directory of /v1/files and /v1/batches, which instances and servers may share; empty turns them off."""
    batch_concurrency: Positive = 16
    """Requests of batches in progress in each instance; none begins while others wait for the engine."""
    max_file_bytes: Positive = 200 * 1024 * 1024
    """The largest file of /v1/files, in bytes; all together may have 50 times as many."""
    image_url_hosts: HostNames = ""
    """Hosts that images may be fetched from, separated by commas: `example.com`, `*.example.com`, `*` (every one), with
    `:port` or at the usual one. Their addresses must be public. Empty is none."""
    image_url_private_hosts: HostNames = ""
    """Further such hosts, whose addresses may also be private ones, such as a store of your own. Link-local addresses
    are never asked. Empty is none."""
    image_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    """Seconds in which an image must be fetched, with its redirects."""
    max_image_bytes: Positive = 20 * 1024 * 1024
    """The largest image, in bytes of its file."""
    max_image_pixels: Annotated[int, msgspec.Meta(ge=1, le=256 * 1024 * 1024)] = 16 * 1024 * 1024
    """The most pixels of an image. To decode one takes up to 32 bytes for each, in a separate process."""
    max_image_memory_bytes: Positive = 512 * 1024 * 1024
    """Bytes of all images in each instance: fetched files, and pixels (3 each) until a request has ended; above it 503.
    Of several API keys none takes more than it leaves free."""
    max_audio_bytes: Positive = 25 * 1024 * 1024
    """The largest audio, in bytes of its file."""
    max_audio_seconds: Annotated[int, msgspec.Meta(ge=1, le=24 * 3600)] = 1500
    """The longest audio, in seconds."""
    max_audio_memory_bytes: Positive = 512 * 1024 * 1024
    """Bytes of all decoded audio in each instance, 4 for each sample, until a request has ended; above it 503. Of
    several API keys none takes more than it leaves free."""
    tokenizer_info: bool = False
    """Serve /tokenizer_info: the chat template and the tokenizer's configuration."""
    engine_transport: Literal["auto", "exchange", "grpc"] = "auto"
    """Transport to the engines: `exchange` to our own model.py, `grpc` (Triton's port, looped back) to the C++ backend
    `tensorrtllm`, `auto` by the backend in each engine's config.pbtxt."""
    engine_grpc_url: str = ""
    """Host and port of this server's gRPC front end, for `grpc`; empty reads tritonserver's command line."""
    task_models_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    """Seconds between two looks for other Triton models of this server with an `openai_task`; 0 serves none of them."""
    task_models_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Seconds that a model with an `openai_task` may take for a request; its own `openai_timeout_s` goes before."""
    chat_models_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """Seconds until the end of the answer of a model with the task `chat`; its own `openai_timeout_s` goes before."""
    preprocessing_transport: Literal["auto", "exchange", "bls"] = "auto"
    """Transport to `preprocessing`: `exchange` to our own model.py, `bls` to any other by its tensors, `auto` by
    whether the model.py serves the exchange."""
    preprocessing_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Seconds until a `preprocessing` that is called by BLS must have answered."""
    keep_alive_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """Seconds of silence after which a /v1 stream sends a comment line, so that proxies keep it open; on /v1/messages a
    `ping` event, after 10 s at the latest."""
    request_log: Literal["text", "json", "off"] = "text"
    """One line for each request on standard output, or none."""
    tracing: bool = False
    """Send OpenTelemetry traces, by OTLP over HTTP to where the variables `OTEL_*` say."""
    cors_origins: str = ""
    """Origins of web pages that may use /v1, separated by commas, such as `https://chat.example.com`; `*` is every
    page. Empty is none."""
    ssl_certfile: str = ""
    """File with the certificate of /v1 and its chain, PEM; with it /v1 speaks HTTPS and no HTTP. Read again when it
    changes, as are the other two. Empty is HTTP."""
    ssl_keyfile: str = ""
    """File with the certificate's private key, PEM and not encrypted; empty looks for it in `ssl_certfile`."""
    ssl_ca_certs: str = ""
    """File with the CAs of clients, PEM; with it requests need a client certificate, wherever they need an API key.
    Empty asks for none."""
    guard_before: GuardName = ""
    """Triton model that sees each request before the engine does, and may change or refuse it; empty is none."""
    guard_after: GuardName = ""
    """Triton model that sees each answer, with its usage, and may change or refuse one that is not streamed; empty is
    none."""
    guard_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    """Seconds that a guard may take for one call."""
    guard_on_failure: Literal["refuse", "pass"] = "refuse"
    """Treatment of a request whose guard fails, is not loaded, is late or answers what it may not: `refuse` it with
    503, or let it `pass` as if the guard had nothing to say."""
    api_key: str = ""
    """Key that requests must have, on /v1 as `Authorization: Bearer <key>`. Set by OPENAI_BLS_API_KEY only. With this
    and `api_keys_file` empty, none is required."""
    api_keys_file: str = ""
    """File with further keys, each with a name (`core.api_keys`); read again when it changes. Empty is none."""
    triton_requires_key: bool = True
    """Ask for a key on Triton's endpoints too, where there are keys, and keep their ports on loopback unless
    `--triton-host` says otherwise; false is for servers whose Triton clients have no keys."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """`model_aliases`, split."""
        return tuple(name.strip() for name in self.model_aliases.split(",") if name.strip())

    @property
    def origins(self) -> tuple[str, ...]:
        """`cors_origins`, split."""
        return tuple(origin.strip() for origin in self.cors_origins.split(",") if origin.strip())

    @property
    def image_hosts(self) -> tuple[str, ...]:
        """`image_url_hosts`, split."""
        return tuple(host.strip() for host in self.image_url_hosts.split(",") if host.strip())

    @property
    def image_private_hosts(self) -> tuple[str, ...]:
        """`image_url_private_hosts`, split."""
        return tuple(host.strip() for host in self.image_url_private_hosts.split(",") if host.strip())

    @staticmethod
    def format_for(setting: str, engine: str) -> str:
        """The format that `tool_call_parser` or `reasoning_parser` sets for the Triton model `engine`.

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


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a model that has none: any parameter is refused."""


class TensorRtLlmBlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the model `tensorrt_llm_bls`, which its config.pbtxt alone holds."""

    decoupled_mode: bool | None = None
    """Any number of responses per request, hence streams; None is as `tensorrt_llm` has it."""


class PreprocessingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the model `preprocessing`."""

    tokenizer_threads: Positive = 4
    """Threads that prepare prompts of `openai_bls` that are long or arrive together."""
    max_prompt_bytes: NotNegative = 0
    """The largest prompt that is tokenized, in bytes of text, which take some 200 times the memory; 0 is 8 for each
    token of the engine's context, and 1 MiB at the least."""
    prompt_cache_bytes: NotNegative = 64 * 1024 * 1024
    """Memory for the tokens of long prompts, in bytes: of a conversation that goes on only the new messages are
    tokenized. The least recently used go first; 0 is no cache."""
    max_request_bytes: Positive = 32 * 1024 * 1024
    """The largest request on Triton's endpoints, in bytes of its tensors."""


# Numbers above 0, separated by commas.
_WINDOWS = r"^( *0*[1-9][0-9]* *(, *0*[1-9][0-9]* *)*)?$"


class OfficialSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the model `tensorrt_llm`, with any backend; all but the first and the last are for TensorRT-LLM
    engines, under the official names.

    An engine without one of them refuses to load. None is TensorRT-LLM's own default.
    """

    exclude_input_in_output: bool = True
    """Leave the prompt's ids out of a whole (not streamed) answer; a request may override it."""
    kv_cache_free_gpu_mem_fraction: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Share that the KV cache takes of the GPU memory that the weights leave."""
    max_tokens_in_paged_kv_cache: Positive | None = None
    """Tokens of all sequences together in the KV cache; with TensorRT-LLM the smaller of this and the
    fraction counts."""
    kv_cache_host_memory_bytes: NotNegative | None = None
    """Bytes of host memory that cached prompts may be moved to."""
    enable_kv_cache_reuse: bool | None = None
    """Prompts that begin alike share their KV cache."""
    max_attention_window_size: Annotated[str, msgspec.Meta(pattern=_WINDOWS)] = ""
    """Tokens that attention looks back; several, separated by commas, go round over the layers."""
    enable_chunked_context: bool | None = None
    """Prefill long prompts in chunks, batched with the decoding of other requests."""
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] | None = None
    """`guaranteed_no_evict`: a request begins only when its whole length fits the KV cache."""
    verify_weights: bool | None = None
    """Compare the hashes of all files of the engine when it is loaded, which reads them whole; with every engine."""
    guided_decoding_backend: Literal["", "xgrammar", "llguidance"] = ""
    """TensorRT-LLM's grammar library; with none (empty), requests for structured output are refused."""
    lora_watch_dir: str = ""
    """Directory whose folders are adapters, loaded and unloaded as they appear and disappear; empty is none."""

    @property
    def attention_windows(self) -> tuple[int, ...]:
        """`max_attention_window_size`, split."""
        return tuple(int(part) for part in self.max_attention_window_size.split(",") if part.strip())


class EngineSettings(OfficialSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of an engine's model with our own model.py: also how it reaches an engine in a separate process."""

    kv_events_endpoint: str = ""
    """ZMQ address where the engine publishes the events of its prefix cache, in vLLM's form: `tcp://*:5557` listens,
    `tcp://host:5557` connects. Empty is off."""
    kv_events_replay_endpoint: str = ""
    """ZMQ address, `tcp://*:5558` for example, where consumers ask for events that they have missed; empty is none."""
    kv_events_topic: str = ""
    """Topic of the published events; llm-d's endpoint picker expects `kv@POD@MODEL`."""
    engine_python: str = ""
    """Python interpreter of the engine's own process: an absolute path, or a command on PATH. Empty takes the one of
    engine.json; without one there the engine runs in the model's process."""
    engine_address: str = ""
    """Address of an engine's process that somebody else starts, by `openai-bls engine`: `unix:/path`. Empty is
    none."""
    engine_connect_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """Seconds that the load of the model waits for the engine's process."""
    engine_silence_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """Seconds without any sign of life after which an engine's process that has loaded is taken for hung: one that was
    started here is killed and started again."""
    engine_restarts: NotNegative = 5
    """Starts of the engine's process that may fail one after the other, after it was lost; then it stays down until the
    model is loaded again."""


_ENVIRONMENT_ONLY = frozenset({"api_key"})

_ENGINE_SETTINGS = frozenset(OpenAiBlsSettings.__struct_fields__ + EngineSettings.__struct_fields__)

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


def engine_overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """Engine options from the environment: `OPENAI_BLS_ENGINE` and `OPENAI_BLS_ENGINE_<OPTION>` (`engine.select`)."""
    prefix = ENV_PREFIX + "ENGINE"
    overrides = {}
    for name, value in environ.items():
        option = name.removeprefix(prefix + "_").lower()
        # Some settings of the models begin alike.
        if name.startswith(prefix + "_") and f"engine_{option}" not in _ENGINE_SETTINGS:
            overrides[option] = value
    if prefix in environ:
        overrides["engine"] = environ[prefix]
    return overrides


def load(cls: type[SettingsT], parameters: Mapping[str, str], environ: Mapping[str, str]) -> SettingsT:
    """Settings of class `cls` from config.pbtxt `parameters`, overridden by `environ`.

    Raises:
        SettingsError: an unknown name or a bad value; the message says which and what is allowed.
    """
    values = {key: value for key, value in parameters.items() if key not in BACKEND_PARAMETERS}
    known = [name for name in cls.__struct_fields__ if name not in _ENVIRONMENT_ONLY]
    for key in values:
        if key not in known:
            instead = f": {SETTINGS[key]}" if key in SETTINGS else f"; {meant_or_known(key, known)}"
            raise SettingsError(f"unknown parameter {key!r} in config.pbtxt{instead}")
    sources = {}
    for name in cls.__struct_fields__:
        variable = ENV_PREFIX + name.upper()
        override = environ.get(variable)
        if override is not None:
            values[name], sources[name] = override, variable
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(wrong_values(cls, values, sources) or f"bad parameter value: {error}") from None


def wrong_values(
    cls: type[msgspec.Struct], values: Mapping[str, object], sources: Mapping[str, str] | None = None
) -> str:
    """Sentence about each of `values` that the struct `cls` does not take, such as `http_port is 'abc'; it is a whole
    number from 0 to 65535`. Empty if it takes them all.

    Args:
        cls: struct whose fields are the settings.
        values: setting → its value, as a config file or the environment has it.
        sources: setting → place that its value comes from, where that is not a config file.
    """
    said = []
    for field in msgspec.structs.fields(cls):
        name = field.name
        try:
            if name in values:
                msgspec.convert(values[name], field.type, strict=False)
        except msgspec.ValidationError:
            place = f" ({sources[name]})" if sources and name in sources else ""
            said.append(f"{name} is {values[name]!r}{place}; it is {_wanted(inspect.type_info(field.type))}")
    return "; ".join(said)


def _wanted(kind: Any) -> str:
    """Values that a type allows, in words."""
    if isinstance(kind, inspect.UnionType):
        kind = next(part for part in kind.types if not isinstance(part, inspect.NoneType))
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(str(value) or "nothing" for value in kind.values)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        word = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        return word + _range(kind)
    if isinstance(kind, inspect.StrType) and kind.pattern:
        return f"a text of the form {kind.pattern}"
    return "of another type"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    least = f"from {kind.ge:g}" if kind.ge is not None else f"above {kind.gt:g}" if kind.gt is not None else ""
    most = f"to {kind.le:.15g}" if kind.le is not None else f"below {kind.lt:g}" if kind.lt is not None else ""
    if kind.ge is not None and not most:
        most = "on"
    return "".join(f" {word}" for word in (least, most) if word)
