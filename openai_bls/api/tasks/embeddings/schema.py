"""Body and answer of /v1/embeddings.

Source: the OpenAI API reference; `pooling`, `add_special_tokens` and `priority` are additions, the latter two under
vLLM's names.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from openai_bls.api.chat.schema import PositiveInt, Priority, TokenId
from openai_bls.api.common.bodies import PromptUsage, WithoutEffectOfUser, check_inputs, convert, texts_or_token_ids
from openai_bls.api.common.documented import limits
from openai_bls.api.common.encoding import encode

EncodingFormat = Literal["float", "base64"]
Pooling = Literal["last", "mean"]


class EmbeddingsBody(WithoutEffectOfUser, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/embeddings."""

    input: str | Annotated[list[str | TokenId | list[TokenId]], limits(minItems=1)]
    """A string, strings, token ids, arrays of them; up to 2,048."""
    model: str | None = None
    """A served name, of an engine or of a Triton model with the task `embeddings`."""
    encoding_format: EncodingFormat | None = None
    """`float`, `base64`."""
    dimensions: PositiveInt | None = None
    """The model's own size; of a model that embeds, an engine's or another Triton model, also those to which it says
    that its vectors may be cut."""
    pooling: Pooling | None = None
    """An addition: `last` (the last token's state, the default) or `mean`. Refused with a model that only embeds."""
    add_special_tokens: bool | None = None
    """True unless given; refused with another Triton model."""
    priority: Priority | None = None
    """Place in the queue, as of chat completions; refused with another Triton model."""


class Embedding(msgspec.Struct, frozen=True):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: str | msgspec.Raw
    """Base64 of little-endian float32, or a JSON array."""


class EmbeddingsAnswer(msgspec.Struct, frozen=True):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


def answer_of(vectors: Sequence[str | msgspec.Raw], model: str, prompt_tokens: int) -> EmbeddingsAnswer:
    """The answer with encoded vectors, in the order of the inputs."""
    data = [Embedding("embedding", index, vector) for index, vector in enumerate(vectors)]
    return EmbeddingsAnswer("list", data, model, PromptUsage(prompt_tokens, prompt_tokens))


def parse_embeddings(body: dict[str, Any]) -> tuple[EmbeddingsBody, list[str], list[list[int]]]:
    """A valid request with its inputs: either texts or rows of token ids, which may be outside the vocabulary.

    Raises:
        InvalidRequestError: `param` names the field at fault.
    """
    request = convert(body, EmbeddingsBody)
    texts, token_ids = texts_or_token_ids(request.input, "input")
    check_inputs(len(texts) + len(token_ids), "input")
    return request, texts, token_ids


def encode_vector(vector: list[float], encoding_format: EncodingFormat | None) -> str | msgspec.Raw:
    """A vector as its place in the answer has it."""
    if encoding_format == "base64":
        # The machines that Triton runs on are little-endian.
        return base64.b64encode(array("f", vector).tobytes()).decode("ascii")
    return msgspec.Raw(encode(vector))
