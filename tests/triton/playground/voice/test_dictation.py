"""Dictation in a real browser: its microphone says a sentence, which the server's recognizer hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route

from openai_bls.launcher.testing import RunningServer
from tests.triton.playground.browser import Browser, Playground, opened
from tests.triton.playground.voice.support import HEARD, MOST_S, OBSERVE, PHONE, entered

pytestmark = pytest.mark.triton


def said(playground: Playground) -> str:
    """The sentence near the composer."""
    playground.page.wait_for_selector("#microphone-fault:visible")
    return playground.page.inner_text("#microphone-fault").removesuffix(" Try again")


def let_go(playground: Playground) -> bool:
    """True if every track that there was has ended."""
    ended: bool = playground.run(
        "streams.flatMap((stream) => stream.getTracks()).every(({ readyState }) => readyState === 'ended')"
    )
    return ended


def record(playground: Playground, seconds: int = 0) -> None:
    """Press the button, and wait until the recording has so many seconds."""
    playground.page.click("#microphone")
    playground.page.wait_for_function(
        "(seconds) => Number(document.querySelector('#microphone-time').textContent.split(':')[1] || -1) >= seconds",
        arg=seconds,
    )


def wait_until_idle(playground: Playground) -> None:
    playground.page.wait_for_selector("#microphone-label:text-is('Dictate')")


def test_nothing_is_offered_or_asked_where_no_model_hears_or_speaks(browser: Browser, server: RunningServer) -> None:
    url = server.openai_url.removesuffix("v1")
    with opened(browser, url, script=OBSERVE, permissions=["microphone"]) as playground:
        loaded: list[str] = []
        page = playground.page
        page.on("request", lambda request: loaded.append(request.url))
        page.reload()
        page.locator("#model option").first.wait_for(state="attached")
        playground.ask("Hello!")
        assert not page.is_visible("#microphone")
        assert page.get_by_role("button", name="Read aloud").count() == 0
        assert page.get_by_role("button", name="Regenerate").count() == 1
        assert playground.run("asked") == 0
        assert any("main.js" in url for url in loaded)
        assert not any("/voice/" in url for url in loaded)


def test_a_dictation_goes_to_the_cursor(playground: Playground) -> None:
    page = playground.page
    assert playground.run("asked") == 0
    page.fill("#prompt", "Is it true: ? Tell me.")
    for _ in "? Tell me.":
        page.press("#prompt", "ArrowLeft")
    assert page.get_attribute("#microphone", "aria-pressed") == "false"
    # By the keyboard, as by the mouse in the other tests.
    page.focus("#microphone")
    page.keyboard.press("Space")
    page.wait_for_selector("#microphone[aria-pressed=true] >> text=Recording")
    assert (playground.run("asked"), let_go(playground)) == (1, False)
    page.wait_for_function("() => document.querySelector('#microphone-time').textContent === '0:04'")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(text) => document.querySelector('#prompt').value === text", arg=f"Is it true: {HEARD}? Tell me."
    )
    assert let_go(playground)
    assert page.get_attribute("#microphone", "aria-pressed") == "false"
    assert playground.run("document.activeElement.id") == "prompt"
    assert playground.run("document.querySelector('#prompt').selectionStart") == len(f"Is it true: {HEARD}")
    # It is the visitor who sends it, and a reload keeps it.
    assert playground.bodies == []
    page.reload()
    assert page.input_value("#prompt") == f"Is it true: {HEARD}? Tell me."


def test_escape_throws_a_dictation_away(playground: Playground) -> None:
    page = playground.page
    sent: list[str] = []
    page.route("**/audio/transcriptions", lambda route: sent.append(route.request.url))
    page.fill("#prompt", "typed")
    record(playground)
    page.keyboard.press("Escape")
    wait_until_idle(playground)
    assert (let_go(playground), sent) == (True, [])
    # Also while the server listens to it.
    record(playground, 1)
    page.click("#microphone")
    page.wait_for_selector("#microphone[aria-busy=true] >> text=Transcribing")
    page.wait_for_function("() => streams.length === 2")
    assert let_go(playground)
    page.keyboard.press("Escape")
    wait_until_idle(playground)
    assert page.input_value("#prompt") == "typed"
    assert not page.is_visible("#microphone-fault")


def test_a_dictation_ends_where_the_server_takes_no_more(playground: Playground) -> None:
    page = playground.page
    record(playground)
    page.wait_for_function("(heard) => document.querySelector('#prompt').value === heard", arg=HEARD)
    assert said(playground) == f"The server takes 0:0{MOST_S} of audio at most: the recording has ended there."
    assert let_go(playground)


def test_a_refused_microphone(browser: Browser, voiced: RunningServer) -> None:
    with opened(browser, voiced.openai_url.removesuffix("v1"), script=OBSERVE) as playground:
        entered(playground).page.fill("#prompt", "typed")
        assert playground.run("asked") == 0
        playground.page.click("#microphone")
        assert said(playground) == "The browser, or the system, does not let this page use the microphone."
        wait_until_idle(playground)
        assert playground.page.input_value("#prompt") == "typed"


def test_a_page_without_https(browser: Browser, voiced: RunningServer) -> None:
    """There the browser has no `navigator.mediaDevices`."""
    url = voiced.openai_url.removesuffix("v1").replace("127.0.0.1", "plain.test")
    with opened(browser, url, script=OBSERVE) as playground:
        assert entered(playground).run("isSecureContext") is False
        playground.page.click("#microphone")
        assert said(playground) == "The browser gives the microphone only to pages over HTTPS, or of this machine."
        wait_until_idle(playground)


NO_MICROPHONE = {
    "NotFoundError": "There is no microphone.",
    "NotReadableError": "The microphone cannot be opened; another program may be using it.",
}


@pytest.mark.parametrize("name", NO_MICROPHONE)
def test_no_microphone(playground: Playground, name: str) -> None:
    """As browsers say it; those of a test machine have the one of the tests."""
    playground.run(
        "(name) => (navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', name); })", name
    )
    playground.page.click("#microphone")
    assert said(playground) == NO_MICROPHONE[name]
    wait_until_idle(playground)


def fulfilled(status: int) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={})


def test_a_dictation_is_not_lost_to_a_key_or_a_busy_server(playground: Playground) -> None:
    page = playground.page
    page.fill("#prompt", "typed")
    page.fill("#key", "wrong")
    record(playground, 4)
    page.click("#microphone")
    assert said(playground) == "The server does not accept this key."
    page.fill("#key", "secret")
    answers = [(503, "The server is busy or not ready yet."), (500, "The server had an error.")]
    for status, sentence in answers:
        page.route("**/audio/transcriptions", fulfilled(status))
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(f"#microphone-fault:visible >> text={sentence}")
        page.unroute("**/audio/transcriptions")
    page.route("**/audio/transcriptions", lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#microphone-fault:visible >> text=The server does not answer.")
    page.unroute("**/audio/transcriptions")
    assert page.input_value("#prompt") == "typed"
    page.get_by_role("button", name="Try again").click()
    page.wait_for_function("(text) => document.querySelector('#prompt').value === text", arg=f"typed {HEARD}")
    assert not page.is_visible("#microphone-fault")
    assert (playground.run("asked"), let_go(playground)) == (1, True)


def test_a_dictation_that_is_too_short_or_silent(playground: Playground) -> None:
    page = playground.page
    page.fill("#prompt", "typed")
    # The second press comes as soon as the first has opened the microphone.
    playground.run(
        """() => {
            const button = document.querySelector("#microphone");
            const watch = new MutationObserver(() => {
                if (!button.innerText.startsWith("Recording")) return;
                watch.disconnect();
                button.click();
            });
            watch.observe(button, { subtree: true, childList: true, characterData: true });
            button.click();
        }"""
    )
    assert said(playground) == "Nothing was recorded."
    page.route("**/audio/transcriptions", lambda route: route.fulfill(json={"text": " "}))
    record(playground, 1)
    page.click("#microphone")
    page.wait_for_selector("#microphone-fault >> text=No words were heard.")
    assert page.input_value("#prompt") == "typed"


def test_a_phone(browser: Browser, voiced: RunningServer) -> None:
    options: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "permissions": ["microphone"]}
    with opened(browser, voiced.openai_url.removesuffix("v1"), script=OBSERVE, **options) as playground:
        page = playground.page
        page.wait_for_selector("#problem:visible")
        page.get_by_role("button", name="Show me where").click()
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        page.click("#settings-close")
        page.wait_for_selector("#microphone:visible")
        for state in ("idle", "recording"):
            assert playground.overflow() <= 0, state
            shown = page.locator("#composer button:visible").all()
            boxes = [box for box in (button.bounding_box() for button in shown) if box]
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] for box in boxes), state
            page.tap("#microphone")
        wait_until_idle(playground)
