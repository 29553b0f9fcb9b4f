"""Official tensors of guided decoding: the grammar of a guide's type and text."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core.engine_types import EngineInfo, Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensorrt_llm.values import scalar, unsupported
from openai_bls.triton_models.tensors import word_tensors
from openai_bls.triton_models.tensors.arrays import Arrays

_GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")


def grammar(arrays: Arrays, info: EngineInfo) -> Grammar | None:
    """Grammar that the output must match; None without a guide.

    Raises:
        InvalidRequestError: a bad guide, or the engine takes none.
    """
    kind = word_tensors.text(scalar(arrays, "guided_decoding_guide_type", b""), "guided_decoding_guide_type")
    guide = word_tensors.text(scalar(arrays, "guided_decoding_guide", b""), "guided_decoding_guide")
    if kind and "grammar" not in info.supported:
        raise unsupported("guided_decoding_guide_type")
    if guide and not kind:
        raise InvalidRequestError(
            f"'guided_decoding_guide' needs a 'guided_decoding_guide_type': {', '.join(_GUIDE_TYPES)}.",
            param="guided_decoding_guide_type",
        )
    if not kind:
        return None
    if kind not in _GUIDE_TYPES:
        raise InvalidRequestError(
            f"'guided_decoding_guide_type' {kind!r} is not one of {', '.join(_GUIDE_TYPES)}.",
            param="guided_decoding_guide_type",
        )
    if bool(guide) == (kind == "json"):
        says = "takes no" if kind == "json" else "needs a"
        raise InvalidRequestError(
            f"'guided_decoding_guide_type' {kind!r} {says} 'guided_decoding_guide'.", param="guided_decoding_guide"
        )
    # Costs nothing for requests without a guide.
    from openai_bls.output import structured

    return structured.grammar(_guide(kind, guide), info, param="guided_decoding_guide")


def _guide(kind: str, guide: str) -> dict[str, Any]:
    """The format that `structured` makes a grammar of."""
    match kind:
        case "json":
            return {"type": "json_schema", "json_schema": True}
        case "json_schema":
            return {"type": "json_schema", "json_schema": _json(guide)}
        case "regex":
            return {"type": "regex", "pattern": guide}
        case "ebnf_grammar":
            return {"type": "grammar", "grammar": guide}
        case _:
            tag = _json(guide)
            if not isinstance(tag, dict):
                raise InvalidRequestError(
                    "'guided_decoding_guide' must hold a JSON object for a structural tag.",
                    param="guided_decoding_guide",
                )
            return tag


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"'guided_decoding_guide' is not JSON text: {error}", param="guided_decoding_guide"
        ) from None
