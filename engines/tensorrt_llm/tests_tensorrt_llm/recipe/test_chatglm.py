"""ChatGLM by paths that say nothing, or the wrong thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.recipe.model.chatglm import guessed, readable, version_of
from tests_tensorrt_llm.recipe import published_models

SMALL = published_models.config("chatglm3-6b")
LARGE = published_models.config("glm-4-9b-chat")
SECOND = "class ChatGLMTokenizer:\n    special_tokens = ['[gMASK]', 'sop']\n"
THIRD = "class ChatGLMTokenizer:\n    special_tokens = ['[gMASK]', 'sop', '<|user|>']\n"


def checkpoint(folder: Path, code: str = "", added: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    if code:
        (folder / "tokenization_chatglm.py").write_text(code)
    if added:
        tokens = {str(number): {"content": token} for number, token in enumerate(added)}
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    return folder


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/models/chatglm2-6b", "chatglm2"),
        ("/models/glm_4", "glm4"),
        ("/glm4/chatglm2-6b", "glm4"),
        ("/chatglm3/chatglm2-6b", "chatglm3"),
        ("/hub/models--THUDM--glm-4-9b-chat/snapshots/0123", "glm4"),
        ("/models/chatglm-6b", "chatglm"),
        ("/models/mine", ""),
    ],
)
def test_what_tensorrt_llm_would_guess(path: str, version: str) -> None:
    assert guessed(Path(path)) == version


def test_what_the_checkpoint_tells(tmp_path: Path) -> None:
    assert version_of(checkpoint(tmp_path / "a"), LARGE) == "glm4"
    assert version_of(checkpoint(tmp_path / "b", SECOND), SMALL) == "chatglm2"
    assert version_of(checkpoint(tmp_path / "c", THIRD), SMALL) == "chatglm3"
    assert version_of(checkpoint(tmp_path / "d", SECOND, ("<|user|>",)), SMALL) == "chatglm3"
    assert version_of(checkpoint(tmp_path / "e"), SMALL) is None
    (tmp_path / "e" / "tokenizer_config.json").write_text("[]")
    assert version_of(tmp_path / "e", SMALL) is None


@pytest.mark.parametrize("name", ["mine", "chatglm2-renamed", "glm4-or-so"], ids=["nothing", "second", "fourth"])
def test_a_link_says_it(tmp_path: Path, name: str) -> None:
    source = checkpoint(tmp_path / name, THIRD)
    workspace = tmp_path / "work"
    workspace.mkdir()
    found = readable(source, SMALL, workspace)
    assert found.parent == workspace
    assert guessed(found) == "chatglm3"
    assert (found / "tokenization_chatglm.py").read_text() == THIRD


def test_no_link_where_none_is_needed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "chatglm3-6b", THIRD)
    assert readable(source, SMALL, tmp_path) == source
    unknown = checkpoint(tmp_path / "chatglm2-6b")
    assert readable(unknown, SMALL, tmp_path) == unknown


def test_a_workspace_that_misleads(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "mine", SECOND)
    workspace = tmp_path / "glm4" / "work"
    workspace.mkdir(parents=True)
    with pytest.raises(BuildError, match=r"glm4 .* chatglm2"):
        readable(source, SMALL, workspace)
    assert not list(workspace.iterdir())
