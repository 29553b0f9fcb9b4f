"""Prompts with images: placeholders written once, in their places, and never by a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import PromptRequest
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from tests.processors import IMAGE, PROCESSORS, write_processor

STRINGS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for p in m.content | selectattr('type', 'equalto', 'image') %}<image>"
    "{% endfor %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}{% endfor %}"
)
SIZES = [(40, 70), (100, 33)]


def user(*parts: str) -> list[dict[str, Any]]:
    """A message of texts, with an image in the place of each #."""
    content = [{"type": "image"} if part == "#" else {"type": "text", "text": part} for part in parts]
    return [{"role": "user", "content": content}]


def encoder(folder: Path, name: str, template: str | None = None) -> PromptEncoder:
    write_processor(folder, PROCESSORS[name], *([] if template is None else [template]))
    return PromptEncoder(folder)


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "idefics3", "mistral3"])
def test_both_forms_of_a_prompt(name: str, tmp_path: Path) -> None:
    prompts = encoder(tmp_path, name)
    result = prompts.prepare(PromptRequest(messages=user("a ", "#", " b ", "#"), image_sizes=SIZES))
    token, own = PROCESSORS[name].placeholder, VisionProcessor(tmp_path)
    assert result.media_text == f"<|im_start|>user\na {token} b {token}<|im_end|>\n<|im_start|>assistant\n"
    assert result.media_token_ids == prompts.encode(result.media_text, add_special_tokens=False)
    assert result.prompt_token_ids == [own.expand(result.media_text, SIZES)]
    assert result.image_tokens == own.count(result.prompt_token_ids[0]) > 2


def test_a_template_of_strings_gets_the_placeholders(tmp_path: Path) -> None:
    prompts = encoder(tmp_path, "llava", STRINGS)
    messages = [{"role": "system", "content": "s"}, *user("#", "a", "b", "#", "c")]
    result = prompts.prepare(PromptRequest(messages=messages, image_sizes=SIZES))
    assert result.media_text == f"[system]s[user]{IMAGE}\nab\n{IMAGE}\nc"
    assert result.image_tokens == 2 * 16


def test_a_template_of_parts_gets_parts_alone(tmp_path: Path) -> None:
    prompts = encoder(tmp_path, "llava", PARTS)
    answer = {"role": "assistant", "content": "said"}
    result = prompts.prepare(PromptRequest(messages=[*user("a", "#"), answer], image_sizes=SIZES[:1]))
    assert result.media_text == f"[user]{IMAGE}a[assistant]said"
    text = PromptRequest(messages=[{"role": "user", "content": "plain"}])
    assert prompts.render(text) == "[user]plain", "a string that the template would drop"


def test_the_template_of_a_request_counts(tmp_path: Path) -> None:
    prompts = encoder(tmp_path, "llava", PARTS)
    result = prompts.prepare(PromptRequest(messages=user("#", "a"), image_sizes=SIZES[:1], chat_template=STRINGS))
    assert result.media_text == f"[user]{IMAGE}\na"
    nothing = PromptRequest(messages=user("#", "a"), image_sizes=SIZES[:1], chat_template="nothing")
    assert "places for 0 of the 1 images" in (prompts.prepare(nothing).error or "")
    prompts.close()


@pytest.mark.parametrize(("name", "typed"), [("llava", IMAGE), ("gemma3", "<soft>"), ("qwen2_vl", "<video>")])
def test_no_client_writes_a_placeholder(name: str, typed: str, tmp_path: Path) -> None:
    prompts = encoder(tmp_path, name)
    answer = {"role": "assistant", "content": f"I saw {typed}"}
    for messages in (user("#", f"a {typed}"), [*user("#"), answer]):
        result = prompts.prepare(PromptRequest(messages=messages, image_sizes=SIZES[:1]))
        assert result.param == "messages"
        assert repr(typed) in (result.error or "")
        assert not result.prompt_token_ids


def test_a_bad_size_is_the_request_s_fault(tmp_path: Path) -> None:
    prompts = encoder(tmp_path, "qwen2_vl")
    for size, told in [((2000, 4), ("invalid_image", "aspect ratio")), ((2, 2), ("image_too_small", "too small"))]:
        for at in range(3):
            sizes = [(64, 64)] * 3
            sizes[at] = size
            result = prompts.prepare(PromptRequest(messages=user(*"###"), image_sizes=sizes))
            assert (result.param, result.code) == (f"images[{at}]", told[0])
            assert told[1] in (result.error or "")
    assert prompts.prepare(PromptRequest(messages=user("#"), image_sizes=[(64, 64)])).error is None
