"""Answers read aloud in a real browser, by the server's voice."""

from __future__ import annotations

from typing import Any

import pytest
from hibari import Hibari

from tests.triton.playground.browser import Playground
from tests.triton.playground.voice.support import RATE

pytestmark = pytest.mark.triton

ANSWER = """## Paris by day

```python
print(1)
```

- *Paris* is [a city](https://x.test).
- It is large; it has a river, and a tower that is made of iron, which people come to see from all over the world daily.
- I like to go there in summer."""
PIECES = [
    "system. Paris by day. Paris is a city.",
    "It is large; it has a river, and a tower that is made of iron, which people come to see from all over the world "
    "daily. I like to go there in summer.",
]
"""An answer, whose first word is the role, and what of it is spoken: the first piece is short."""


def ask(playground: Playground, answer: str) -> None:
    """Have the server give an answer: its engine gives the beginning of the prompt back."""
    playground.page.fill("#system", answer)
    playground.ask("hello")


def speeches(playground: Playground) -> list[dict[str, Any]]:
    """Bodies of the requests for speech from now on."""
    bodies: list[dict[str, Any]] = []

    def asked(request: Any) -> None:
        if request.url.endswith("/audio/speech"):
            bodies.append(request.post_data_json)

    playground.page.on("request", asked)
    return bodies


def test_an_answer_is_read_aloud(playground: Playground, voice: Hibari) -> None:
    page, bodies = playground.page, speeches(playground)
    ask(playground, ANSWER)
    button = page.get_by_role("button", name="Read aloud")
    assert (button.count(), button.get_attribute("aria-pressed")) == (1, "false")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    # The second piece is asked for while the first is heard.
    page.wait_for_function("() => sounds.length === 1")
    assert len(bodies) == 2
    page.wait_for_function("() => sounds.length === 2")
    assert playground.run("sounds[0].ended") is True
    assert [body["input"] for body in bodies] == PIECES
    assert {body["model"] for body in bodies} == {"speech"}
    page.wait_for_selector(".read-aloud[aria-pressed=false]")
    sounds = playground.run("sounds")
    assert [(sound["ended"], sound["stopped"]) for sound in sounds] == [(True, False)] * 2
    expected = [len(voice(piece, seed=0)) / RATE for piece in PIECES]
    assert [sound["seconds"] for sound in sounds] == pytest.approx(expected, abs=0.01)


def test_one_answer_is_read_at_a_time(playground: Playground) -> None:
    page = playground.page
    for _ in range(2):
        ask(playground, ANSWER)
    first, second = page.get_by_role("button", name="Read aloud").all()

    def pressed() -> list[str | None]:
        return [button.get_attribute("aria-pressed") for button in (first, second)]

    first.click()
    page.wait_for_function("() => sounds.length === 1")
    second.click()
    page.wait_for_function("() => sounds.length === 2")
    assert playground.run("sounds.map(({ stopped }) => stopped)") == [True, False]
    assert pressed() == ["false", "true"]
    second.click()
    page.wait_for_function("() => sounds[1].stopped")
    assert pressed() == ["false", "false"]
    # What is edited, or no longer shown, has no button to stop it by.
    first.click()
    page.wait_for_function("() => sounds.length === 3")
    page.locator(".message.assistant").first.get_by_role("button", name="Edit").click()
    page.wait_for_function("() => sounds[2].stopped")
    page.keyboard.press("Escape")
    second.click()
    page.wait_for_function("() => sounds.length === 4")
    page.click("#list-new-chat")
    page.wait_for_function("() => sounds[3].stopped")


def test_a_press_stops_what_has_not_come_yet(playground: Playground) -> None:
    page = playground.page
    ask(playground, ANSWER)
    page.route("**/audio/speech", lambda route: None)
    button = page.get_by_role("button", name="Read aloud")
    with page.expect_event("requestfailed"):
        button.click()
        button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert playground.run("sounds") == []


SPEECH_FAULTS: dict[str, dict[str, Any]] = {
    "The server is busy or not ready yet.": {"status": 503, "json": {}},
    "The text is not spoken.": {"status": 400, "json": {"error": {"message": "The text is not spoken."}}},
    "The browser cannot play the format in which the model speaks.": {"body": "x" * 100},
}


@pytest.mark.parametrize("sentence", SPEECH_FAULTS)
def test_faults_of_reading_aloud(playground: Playground, sentence: str) -> None:
    page = playground.page
    ask(playground, ANSWER)
    page.route("**/audio/speech", lambda route: route.fulfill(**SPEECH_FAULTS[sentence]))
    page.get_by_role("button", name="Read aloud").click()
    page.wait_for_selector(f"#toast >> text={sentence}")
    assert page.get_by_role("button", name="Read aloud").get_attribute("aria-pressed") == "false"


def test_an_answer_without_words(playground: Playground) -> None:
    page, bodies = playground.page, speeches(playground)
    ask(playground, ANSWER)
    playground.act("Edit")
    page.fill(".message.assistant textarea", "```\nx = 1\n```")
    playground.act("Save")
    playground.act("Read aloud")
    page.wait_for_selector("#toast >> text=This answer has no words to read aloud.")
    assert bodies == []
