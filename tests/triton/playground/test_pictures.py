"""Pictures in the playground: attached in three ways to a model whose card takes them, sent, kept, and refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import FilePayload

from openai_bls.launcher.testing import RunningServer
from tests.triton.playground.browser import Browser, Playground, opened

pytestmark = pytest.mark.triton

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URI = f"data:image/png;base64,{PIXEL}"
CARDS = [
    {"id": "reads", "task": "generate", "input_modalities": ["text"]},
    {"id": "sees", "task": "generate", "input_modalities": ["text", "image"]},
]
ANSWER = [
    {"choices": [{"index": 0, "delta": {"content": "A dot."}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
]
# A paste or a drop, as the browser makes them of files.
GIVE = """([event, target, name, type, content]) => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name, { type }));
    const options = { bubbles: true, cancelable: true };
    const made = event === "paste" ? new ClipboardEvent(event, { ...options, clipboardData: data })
        : new DragEvent(event, { ...options, dataTransfer: data });
    document.querySelector(target).dispatchEvent(made);
}"""

LARGE = """() => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(20.1 * 1024 * 1024)], "big.png", { type: "image/png" }));
    const paste = new ClipboardEvent("paste", { bubbles: true, clipboardData: data });
    document.querySelector("#prompt").dispatchEvent(paste);
}"""


@pytest.fixture
def playground(browser: Browser, server: RunningServer) -> Iterator[Playground]:
    """On a server of two models, of which one takes pictures."""
    with opened(browser, server.openai_url.removesuffix("v1")) as found:
        events = [*(f"data: {json.dumps(chunk)}\n\n" for chunk in ANSWER), "data: [DONE]\n\n"]
        found.page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": CARDS}))
        found.page.route(
            "**/chat/completions",
            lambda route: route.fulfill(content_type="text/event-stream", body="".join(events)),
        )
        found.page.reload()
        found.page.wait_for_selector("#model option", state="attached")
        yield found


def picture(name: str = "dot.png", type_: str = "image/png", content: bytes | None = None) -> FilePayload:
    return {"name": name, "mimeType": type_, "buffer": base64.b64decode(PIXEL) if content is None else content}


def choose(playground: Playground, *files: FilePayload) -> None:
    with playground.page.expect_file_chooser() as chooser:
        playground.page.click("#attach")
    chooser.value.set_files(list(files))


def test_pictures_are_attached_sent_and_kept(playground: Playground) -> None:
    page = playground.page
    assert not page.is_visible("#attach")
    page.select_option("#model", "sees")
    choose(playground, picture("one.png"))
    playground.run(GIVE, ["paste", "#prompt", "two.png", "image/png", PIXEL])
    playground.run(GIVE, ["drop", "#messages", "three.png", "image/png", PIXEL])
    page.wait_for_selector("#attachments li:nth-child(3)")
    page.get_by_role("button", name="Remove two.png").click()
    names = page.locator("#attachments img").evaluate_all("nodes => nodes.map((node) => node.alt)")
    assert names == ["one.png", "three.png"]
    page.click("#code-button")
    page.wait_for_selector("#code-dialog[open]")
    assert "data:image/png;base64,…" in page.inner_text("#code-text")
    page.click("#code-close")
    # A picture may go without a word.
    page.press("#prompt", "Enter")
    page.wait_for_selector(".stats")
    part = {"type": "image_url", "image_url": {"url": URI}}
    assert playground.bodies[0]["messages"] == [{"role": "user", "content": [part, part]}]
    assert not page.is_visible("#attachments")
    page.wait_for_function("() => location.hash.startsWith('#chat=')")
    page.reload()
    page.wait_for_selector(".message.user img")
    page.wait_for_function("() => [...document.querySelectorAll('.message img')].every((node) => node.naturalWidth)")
    playground.ask("And now?")
    assert playground.bodies[1]["messages"][0]["content"] == [part, part]
    assert playground.bodies[1]["messages"][2] == {"role": "user", "content": "And now?"}
    # Its question is edited with its pictures.
    page.locator(".message.user").first.hover()
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.fill(".message.user textarea", "What is this?")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.message').length === 2")
    page.wait_for_selector(".stats")
    text = {"type": "text", "text": "What is this?"}
    assert playground.bodies[2]["messages"] == [{"role": "user", "content": [part, part, text]}]


def test_suggestions_are_those_of_the_model(playground: Playground) -> None:
    """A model that sees is asked about a picture, which is chosen first; without one nothing is asked."""
    page = playground.page
    of_words = page.locator(".suggestion").all_inner_texts()
    page.select_option("#model", "sees")
    of_pictures = page.locator(".suggestion").all_inner_texts()
    assert of_words
    assert of_pictures
    assert not {*of_words} & {*of_pictures}
    for files in ([], [picture()]):
        with page.expect_file_chooser() as chooser:
            page.click(".suggestion >> nth=0")
        chooser.value.set_files(files)
    page.wait_for_selector(".stats")
    [body] = playground.bodies
    text = {"type": "text", "text": of_pictures[0]}
    assert body["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": URI}}, text]
    page.click("#list-new-chat")
    page.select_option("#model", "reads")
    assert page.locator(".suggestion").all_inner_texts() == of_words


def test_what_cannot_be_attached_has_a_sentence(playground: Playground) -> None:
    page = playground.page
    playground.run(GIVE, ["drop", "#messages", "dot.png", "image/png", PIXEL])
    assert page.inner_text("#attach-fault") == "The model “reads” reads text only; it takes no pictures."
    page.select_option("#model", "sees")
    playground.run(GIVE, ["paste", "#prompt", "a.svg", "image/svg+xml", "PHN2Zy8+"])
    assert page.inner_text("#attach-fault") == (
        "“a.svg” is no picture that a model reads: it has to be PNG, JPEG, WebP, or GIF."
    )
    playground.run(LARGE)
    assert page.inner_text("#attach-fault") == "“big.png” has 20.1 MB; a picture may have 20 MB at most."
    choose(playground, picture("empty.png", content=b""), picture())
    page.wait_for_selector("#attachments li")
    assert page.inner_text("#attach-fault") == "“empty.png” is empty."
    assert page.locator("#attachments li").count() == 1
    page.select_option("#model", "reads")
    assert page.inner_text("#attach-fault") == "The model “reads” reads text only; it takes no pictures."
    assert page.locator("#attachments li").count() == 0
