"""The playground on a server that wants a key, is slow, takes one request at a time, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.playground.browser import Browser, Playground, opened
from tests.triton.playground.test_page import ATTACKS

pytestmark = pytest.mark.triton

# It gives the beginning of the prompt back, which is the system prompt: what an answer is, is known, and long enough.
ENV = {
    "OPENAI_BLS_ENGINE": "null",
    "OPENAI_BLS_ENGINE_NULL_ECHO": "true",
    "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "15",
    "OPENAI_BLS_MAX_CONCURRENT_REQUESTS": "1",
    "OPENAI_BLS_API_KEY": "secret",
}
LONG = "blue tokens flow " * 400


@pytest.fixture(scope="module")
def strict(repository: Path) -> Iterator[RunningServer]:
    with run_server(repository, env=ENV) as server:
        yield server


@pytest.fixture
def playground(browser: Browser, strict: RunningServer) -> Iterator[Playground]:
    with opened(browser, strict.openai_url.removesuffix("v1")) as playground:
        yield playground


def with_key(playground: Playground) -> None:
    playground.page.fill("#key", "secret")
    playground.page.press("#key", "Tab")
    playground.page.locator("#model option").first.wait_for(state="attached")


def test_a_key_is_asked_for(playground: Playground) -> None:
    page = playground.page
    page.wait_for_selector("#problem:visible")
    assert playground.problem == "This server asks for a key."
    page.get_by_role("button", name="Show me where").click()
    assert playground.run("document.activeElement.id") == "key"
    for wrong in ("wrong", "ключ"):
        page.fill("#key", wrong)
        page.keyboard.press("Tab")
        page.get_by_text("does not accept this key").wait_for()
    with_key(playground)
    page.wait_for_selector("#problem", state="hidden")
    playground.ask("hello")
    assert playground.problem == ""
    assert playground.answers == ["system\nYou are a helpful assistant."]
    assert set(playground.failed_statuses) == {401}


def test_stop_keeps_what_has_come_and_frees_the_engine(playground: Playground) -> None:
    with_key(playground)
    page = playground.page
    page.fill("#system", LONG)
    playground.ask("hello", whole=False)
    page.get_by_text("blue tokens flow").locator("visible=true").last.wait_for()
    page.keyboard.press("Escape")
    playground.wait()
    page.wait_for_selector(".stats")
    assert "stopped by you" in page.inner_text(".stats")
    [said] = playground.answers
    assert said.startswith("system\nblue tokens flow")
    assert len(said) < len(LONG)
    # The only place is free again, at the latest when the server has seen the client go.
    page.fill("#system", "short")
    playground.ask("hello")
    while playground.problem:
        page.get_by_role("button", name="Try again").click()
        playground.wait()
    assert playground.answers[-1] == "system\nshort"
    assert playground.bodies[-1]["messages"][2]["content"].startswith("system\nblue tokens flow")
    # Also before the first token.
    page.fill("#system", LONG)
    playground.ask("again", whole=False)
    page.click("#stop")
    playground.wait()
    assert "stopped by you" in page.inner_text(".stats >> nth=-1")


def test_a_busy_server(playground: Playground) -> None:
    with_key(playground)
    page = playground.page
    page.fill("#system", LONG)
    # Opened before the first question, whose answer is not to end while a browser starts.
    with opened(page.context.browser, playground.url) as other:  # type: ignore[arg-type]
        with_key(other)
        playground.ask("hello", whole=False)
        page.get_by_text("blue tokens flow").locator("visible=true").last.wait_for()
        other.ask("hello")
        assert other.problem == "There are too many requests just now."
        assert "Try again in a second." in other.page.inner_text("#problem")
        assert other.questions == ["hello"]
        page.click("#stop")
        playground.wait()
        while other.problem:
            other.page.get_by_role("button", name="Try again").click()
            other.wait()
        assert other.answers == ["system\nYou are a helpful assistant."]
        assert len(other.questions) == 1


def test_no_prompt_or_answer_becomes_code(playground: Playground) -> None:
    with_key(playground)
    page = playground.page
    text = "\n\n".join(ATTACKS)
    page.fill("#system", text)
    playground.ask(text)
    assert "<script>alert(1)</script>" in playground.answers[0]
    assert playground.questions[0].startswith(ATTACKS[0])
    page.reload()
    page.wait_for_selector(".message.assistant .prose p")
    bad = (
        "script, img, svg:not(.symbol), iframe, style, form, math, base, [onerror], [onload], [onmouseover], [onfocus]"
    )
    assert page.locator(f".messages :is({bad})").count() == 0
    assert page.locator(".messages a:not([href^='https:']), .messages a:not([rel~=noopener])").count() == 0


def test_a_server_that_ends(playground: Playground, strict: RunningServer) -> None:
    """The last of this file: the server does not come back."""
    with_key(playground)
    page = playground.page
    page.keyboard.press("Alt+l")
    page.get_by_text("Once a second").wait_for()
    strict.process.stop()
    page.get_by_text("The server does not answer.").wait_for()
    page.keyboard.press("Alt+l")
    playground.ask("hello")
    assert playground.problem == "The server does not answer."
    assert playground.questions == ["hello"]
    page.get_by_role("button", name="Try again").click()
    playground.wait()
    assert playground.problem == "The server does not answer."
    # The conversation is kept all the same.
    assert page.locator("#conversation-list .title").all_inner_texts() == ["hello"]
