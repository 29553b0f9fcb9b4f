"""Conversations of the playground: kept by the browser, shared by tabs, searched, deleted with undo, saved as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from playwright.sync_api import FilePayload

from openai_bls.launcher.testing import RunningServer
from tests.triton.playground.browser import Browser, Page, Playground, opened, wait_for_texts

pytestmark = pytest.mark.triton

SHORT = "Say this is a test"
JOKE = "Tell me a joke."
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def titles(page: Page) -> list[str]:
    return page.locator("#conversation-list .title").all_inner_texts()


def listed(page: Page, *wanted: str) -> None:
    """Wait until these titles are the list."""
    wait_for_texts(page, "#conversation-list .title", *wanted)


def choose(page: Page, title: str, action: str) -> None:
    page.get_by_role("button", name=f"More for “{title}”").click(force=True)
    page.locator("#conversation-menu").get_by_role("button", name=action).click()


def saved(page: Page, title: str, action: str) -> Path:
    with page.expect_download() as download:
        choose(page, title, action)
    return download.value.path()


def read_in(page: Page, *files: FilePayload) -> str:
    """Read files in; what the page says of it."""
    page.evaluate("document.querySelector('#toast').hidden = true")
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(list(files))
    page.wait_for_selector("#toast:visible")
    return page.inner_text("#toast")


def file_of(name: str, content: Any) -> FilePayload:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"name": name, "mimeType": "text/plain", "buffer": text.encode()}


def stored(*messages: Any) -> dict[str, Any]:
    return {"format": "openai_bls.conversations", "version": 1, "conversations": [{"messages": list(messages)}]}


def test_a_list_that_new_chat_adds_to_and_delete_gives_back(playground: Playground) -> None:
    page = playground.page
    playground.ask(SHORT)
    told = playground.answers
    page.click("#list-new-chat")
    page.wait_for_selector("#welcome:visible")
    playground.ask(JOKE)
    listed(page, JOKE, SHORT)
    page.click(f"text={SHORT}")
    playground.wait_for_questions(SHORT)
    assert playground.answers == told
    # Case and accents do not matter, and the text of messages is searched as well.
    page.fill("#search", "JÓKE tell")
    listed(page, JOKE)
    page.fill("#search", told[0][:12])
    listed(page, SHORT)
    page.fill("#search", "nowhere at all")
    listed(page)
    assert page.inner_text("#conversations-empty") == "Nothing is found."
    page.fill("#search", "")
    listed(page, JOKE, SHORT)
    choose(page, SHORT, "Rename")
    page.keyboard.type("<b>Mine</b>")
    page.keyboard.press("Enter")
    listed(page, JOKE, "<b>Mine</b>")
    playground.ask(JOKE)
    listed(page, "<b>Mine</b>", JOKE)
    # One deleted, and had back.
    choose(page, "<b>Mine</b>", "Delete")
    listed(page, JOKE)
    page.wait_for_selector("#welcome:visible")
    page.click("#toast button")
    listed(page, "<b>Mine</b>", JOKE)
    playground.wait_for_questions(SHORT, JOKE)
    page.reload()
    listed(page, "<b>Mine</b>", JOKE)
    playground.wait_for_questions(SHORT, JOKE)
    page.click("#delete-all")
    listed(page)
    page.click("#toast button")
    listed(page, "<b>Mine</b>", JOKE)


def test_tabs_share_and_never_overwrite(playground: Playground) -> None:
    page = playground.page
    playground.ask(SHORT)
    page.wait_for_function("() => location.hash.startsWith('#chat=')")
    tab = page.context.new_page()
    tab.goto(page.url)
    tab.wait_for_selector(".message.assistant")
    other = Playground(tab, playground.url)
    tab.wait_for_selector("#model option", state="attached")
    # What one says the other shows.
    other.ask(JOKE)
    page.wait_for_function("() => document.querySelectorAll('.message.assistant .stats').length === 2")
    playground.wait_for_answers(*other.answers)
    # Both go on at the same time: as if the second had not heard of the first yet.
    tab.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
    other.ask("What is 2+2?")
    playground.ask("What is the capital of France?")
    page.wait_for_function("() => document.querySelectorAll('#conversation-list [data-id]').length === 2")
    assert sorted(titles(page)) == [SHORT, f"{SHORT} (of another tab)"]
    assert [playground.questions[-1], other.questions[-1]] == ["What is the capital of France?", "What is 2+2?"]
    page.reload()
    playground.wait_for_questions(SHORT, JOKE, "What is the capital of France?")
    page.get_by_role("link", name=SHORT, exact=True).click()
    playground.wait_for_questions(SHORT, JOKE, "What is 2+2?")
    tab.close()


def test_an_answer_goes_on_while_another_chat_is_looked_at(playground: Playground) -> None:
    page = playground.page
    release: list[Any] = []

    def hold(route: Any) -> None:
        release.append(route)

    page.route("**/chat/completions", hold)
    playground.ask(SHORT, whole=False)
    page.wait_for_selector("#stop:visible")
    page.keyboard.press("Alt+n")
    page.wait_for_selector("#welcome:visible")
    assert page.is_visible("#send")
    page.wait_for_selector("#conversation-list .runs")
    release[0].continue_()
    page.wait_for_selector("#conversation-list [data-id]:not(.runs)")
    assert playground.questions == []
    page.click(f"text={SHORT}")
    page.wait_for_selector(".message.assistant .stats")
    playground.wait_for_questions(SHORT)


def test_files_hold_all_of_a_conversation(playground: Playground) -> None:
    """Texts that look like the file's own marks included."""
    page = playground.page
    question = {"role": "user", "content": "a\n<!-- assistant -->\n\\<!-- user -->\n## You\n"}
    question["pictures"] = [{"name": "dot.png", "data": f"data:image/png;base64,{PIXEL}"}]  # type: ignore[assignment]
    call = {"id": "call_2_0", "name": "get weather", "arguments": '{"x": 1}', "result": "21"}
    answer = {"role": "assistant", "content": "# b\n\n", "reasoning": "why\n", "toolCalls": [call], "stats": None}
    assert read_in(page, file_of("a.json", stored(question, answer))) == "1 conversation added."
    listed(page, "a")
    page.click("#conversation-list a")
    page.wait_for_selector(".message.user img")
    page.wait_for_function("() => document.querySelector('.message.user img').naturalWidth === 1")
    whole = json.loads(saved(page, "a", "Save as JSON").read_text())["conversations"][0]["messages"]
    assert whole == [question, answer | {"json": False}]
    markdown = saved(page, "a", "Save as Markdown").read_text()
    assert markdown.startswith("# a\n\n<!-- user -->\n\n## You\n\n![dot.png](data:image/png;base64,")
    # What is here already is not added again.
    assert read_in(page, file_of("a.md", markdown)) == "1 conversation was here already."
    page.click("#delete-all")
    listed(page)
    assert read_in(page, file_of("a.md", markdown)) == "1 conversation added."
    listed(page, "a")
    again = json.loads(saved(page, "a", "Save as JSON").read_text())["conversations"][0]["messages"]
    assert again == [question, answer | {"json": False}]


def test_bad_files_are_told_and_malformed_messages_left_out(playground: Playground) -> None:
    page = playground.page
    files = [file_of("a.json", "{"), file_of("b.json", []), file_of("c.md", "# Notes")]
    told = read_in(page, *files, file_of("d.json", stored()), file_of("e.json", stored() | {"version": 2}))
    for sentence in (
        "“a.json” is no JSON",
        "“b.json” holds no conv",
        "was not written by this page",
        "“d.json” holds no",
    ):
        assert sentence in told
    assert "“e.json” was written by a newer release" in told
    answer = {"role": "assistant", "content": "fine", "stats": {"firstMs": "soon"}}
    malformed = [None, 1, {"role": "user"}, {**answer, "content": 1}, {**answer, "toolCalls": {}}]
    calls = [{**answer, "toolCalls": [call]} for call in (None, {"name": "f"}, {"name": "f", "arguments": {}})]
    picture = {"role": "user", "content": "hello", "pictures": [{"data": "data:image/svg+xml;base64,PHN2Zy8+"}, 1]}
    read_in(page, file_of("f.json", stored(*malformed, *calls, picture, answer)))
    listed(page, "hello")
    # What releases before this one kept is taken over.
    kept = json.dumps([malformed[0], {"role": "user", "content": "of old"}, answer])
    page.evaluate("kept => localStorage.setItem('openai_bls.chat', kept)", kept)
    page.reload()
    listed(page, "of old", "hello")
    page.click("text=hello")
    playground.wait_for_questions("hello")
    assert playground.answers == ["fine"]
    assert page.locator(".message img").count() == 0


OLDER = """async () => {
    const open = indexedDB.open("openai_bls");
    const database = await new Promise((resolve) => (open.onsuccess = () => resolve(open.result)));
    const heads = database.transaction("heads", "readwrite").objectStore("heads");
    const all = heads.getAll();
    all.onsuccess = () => all.result.forEach((head) => heads.put({ ...head, updated: Date.UTC(2026, 2, 15, 12) }));
    await new Promise((resolve) => (heads.transaction.oncomplete = resolve));
}"""


def test_the_list_has_dates(playground: Playground) -> None:
    page = playground.page
    playground.ask(SHORT)
    page.click("#list-new-chat")
    playground.ask(JOKE)
    listed(page, JOKE, SHORT)
    wait_for_texts(page, "#conversation-list .group", "Today")
    playground.run(OLDER)
    page.reload()
    wait_for_texts(page, "#conversation-list .group", "March 2026")


CUT = """([content]) => {
    const body = new ReadableStream({
        start(controller) {
            const chunk = { choices: [{ index: 0, delta: { content } }] };
            if (content) controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\\n\\n`));
        },
    });
    const real = window.fetch;
    const streamed = () => new Response(body, { headers: { "content-type": "text/event-stream" } });
    window.fetch = async (url, options) =>
        String(url).endsWith("/chat/completions") ? streamed() : real(url, options);
}"""


@pytest.mark.parametrize("begun", ["It goes on and", ""])
def test_a_reload_in_the_middle_of_an_answer(playground: Playground, client: openai.OpenAI, begun: str) -> None:
    """What had come is kept and marked, and the answer can be made again."""
    page = playground.page
    playground.run(CUT, [begun])
    playground.ask(SHORT, whole=False)
    page.wait_for_selector("#conversation-list .runs")
    if begun:
        # Kept while it comes in, by no event of the page.
        kept = """async (text) => {
            const open = indexedDB.open("openai_bls");
            const database = await new Promise((resolve) => (open.onsuccess = () => resolve(open.result)));
            const all = database.transaction("contents").objectStore("contents").getAll();
            const found = await new Promise((resolve) => (all.onsuccess = () => resolve(all.result)));
            return JSON.stringify(found).includes(text);
        }"""
        page.wait_for_function(kept, arg=begun)
    page.reload()
    page.wait_for_selector("#problem:visible")
    assert playground.questions == [SHORT]
    assert playground.answers == ([begun] if begun else [])
    assert page.locator(".stats").all_inner_texts() == (["incomplete"] if begun else [])
    page.get_by_role("button", name="Try again").click()
    asked: Any = [{"role": "user", "content": SHORT}]
    whole = client.chat.completions.create(model="demo", messages=asked).choices[0].message.content
    playground.wait_for_answers(str(whole))
    playground.wait()
    assert playground.problem == ""
    page.reload()
    playground.wait_for_answers(str(whole))
    assert playground.problem == ""


def test_a_browser_that_keeps_nothing(browser: Browser, server: RunningServer) -> None:
    with opened(browser, server.openai_url.removesuffix("v1")) as playground:
        page = playground.page
        page.add_init_script("indexedDB.open = () => { throw new DOMException('blocked', 'SecurityError'); }")
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        page.wait_for_selector("#not-kept:visible")
        playground.ask(SHORT)
        page.keyboard.press("Alt+n")
        listed(page, SHORT)
        page.click(f"text={SHORT}")
        playground.wait_for_questions(SHORT)
