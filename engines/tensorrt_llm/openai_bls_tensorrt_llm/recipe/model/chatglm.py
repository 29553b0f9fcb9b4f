"""ChatGLM for TensorRT-LLM, which guesses the version of the model from the path of its checkpoint.

`ChatGLMConfig.from_hugging_face` (tensorrt_llm/models/chatglm/config.py) takes the first of glm4, chatglm3, chatglm2,
chatglm and glm that stands anywhere in the path, and glm4 if glm-4 or glm_4 does; without any it ends in an assertion.
A checkpoint in a folder of another name is therefore built through a link whose name says what it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from openai_bls.core.manifest import BuildError

ChatGlmVersion = Literal["chatglm2", "chatglm3", "glm4"]

_GUESSES = ("glm4", "chatglm3", "chatglm2", "chatglm", "glm")
_GLM4_VOCABULARY = 150_000
"""ChatGLM 2 and 3 have 65,024 tokens, GLM-4 has 151,552."""
_THIRD = "<|user|>"
"""A token of ChatGLM 3 that ChatGLM 2 does not have."""
_CODE = "tokenization_chatglm.py"


def guessed(path: Path) -> str:
    """The version that TensorRT-LLM would see in `path`; empty if it would fail."""
    text = str(path)
    if "glm_4" in text.replace("-", "_"):
        return "glm4"
    return next((version for version in _GUESSES if version in text), "")


def version_of(folder: Path, config: dict[str, Any]) -> ChatGlmVersion | None:
    """The version of the checkpoint in `folder`, by what is in it; None if that does not tell."""
    size = config.get("padded_vocab_size", config.get("vocab_size"))
    if isinstance(size, int) and size >= _GLM4_VOCABULARY:
        return "glm4"
    if _THIRD in _added_tokens(folder / "tokenizer_config.json"):
        return "chatglm3"
    code = folder / _CODE
    if not code.is_file():
        return None
    return "chatglm3" if _THIRD in code.read_text(encoding="utf-8", errors="replace") else "chatglm2"


def refusal(folder: Path, config: dict[str, Any]) -> str | None:
    """Refusal of a ChatGLM that TensorRT-LLM takes for another, and what to do; None if it does not."""
    if version_of(folder, config) is not None or guessed(folder) in ("glm4", "chatglm3", "chatglm2"):
        return None
    return (
        f"{folder} does not tell which ChatGLM it is: put {_CODE} back beside its weights, or give the folder a "
        "name with chatglm2, chatglm3 or glm-4 in it"
    )


def readable(folder: Path, config: dict[str, Any], workspace: Path) -> Path:
    """A path to the checkpoint in `folder` from which TensorRT-LLM guesses right: `folder`, or a link in `workspace`.

    Raises:
        BuildError: `workspace` lies at a path that would mislead it.
    """
    version = version_of(folder, config)
    if version is None or guessed(folder) == version:
        return folder
    link = workspace / version
    if guessed(link) != version:
        raise BuildError(
            f"TensorRT-LLM would take the model for {guessed(link)} by the path {workspace}, and it is {version}: give "
            "a --workspace whose path has no name of a ChatGLM in it"
        )
    link.symlink_to(folder, target_is_directory=True)
    return link


def _added_tokens(path: Path) -> set[str]:
    try:
        listed = msgspec.json.decode(path.read_bytes())["added_tokens_decoder"]
        return {str(token["content"]) for token in listed.values()}
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return set()
