"""The machine's own browser, and a page in it that is watched for whatever must not happen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.tools import tool

__all__ = ["Browser", "Page", "Playground", "opened", "started_browser", "wait_for_texts"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No test needs that long; a machine that is busy may.
TIMEOUT_MS = 60_000
# Chromium asks nobody but the server, and finds nobody else.
ARGUMENTS = [
    "--disable-background-networking",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# Chromium tells of each request that fails, and of a header that it takes over HTTPS and from this machine alone.
CHROMIUM_SAYS = ("Failed to load resource", "The Cross-Origin-Opener-Policy header has been ignored")
# What a page is not told of: code that ran although the policy forbids it.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
    violations.push(`${violatedDirective} ${blockedURI}`));
window.hacked = false;
window.alert = () => (window.hacked = true);
"""


@contextmanager
def started_browser(*arguments: str) -> Iterator[Browser]:
    """The browser, with further arguments of its command line."""
    path = tool(*NAMES)
    # Its own sandbox is for users other than root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *sandbox, *arguments])
        yield browser
        browser.close()


def wait_for_texts(page: Page, selector: str, *texts: str) -> None:
    """Wait until these are the texts of what the selector finds."""
    found = "[...document.querySelectorAll(selector)].map((node) => node.innerText)"
    page.wait_for_function(
        f"([selector, texts]) => JSON.stringify({found}) === JSON.stringify(texts)", arg=[selector, list(texts)]
    )


class Playground:
    """The playground in a tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.failed_statuses: list[int] = []
        """HTTP statuses above 399, which Chromium's console shows as errors."""
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the chat requests."""

    def ask(self, text: str, *, whole: bool = True) -> None:
        """Send a message by the keyboard; `whole` waits for the end of the answer."""
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        if whole:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing streams in, and the last answer or problem is shown."""
        self.page.wait_for_selector("#send:visible")

    @property
    def answers(self) -> list[str]:
        """Texts of the answers, without what is around them."""
        return self.page.locator(".message.assistant .message-body").all_inner_texts()

    @property
    def questions(self) -> list[str]:
        return self.page.locator(".message.user .message-body").all_inner_texts()

    def wait_for_questions(self, *texts: str) -> None:
        """A conversation is read from the browser's database, not at once."""
        wait_for_texts(self.page, ".message.user .message-body", *texts)

    def wait_for_answers(self, *texts: str) -> None:
        wait_for_texts(self.page, ".message.assistant .message-body", *texts)

    @property
    def problem(self) -> str:
        """The problem that is shown; empty if there is none."""
        shown = self.page.locator("#problem:visible strong")
        return shown.inner_text() if shown.count() else ""

    def act(self, name: str, message: str = ".message.assistant") -> None:
        """Press a button of the last such message."""
        self.page.locator(message).last.get_by_role("button", name=name, exact=True).click()

    def run(self, script: str, argument: Any = None) -> Any:
        """The value of JavaScript in the page."""
        return self.page.evaluate(script, argument)

    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        overflow: int = self.run("document.scrollingElement.scrollWidth - innerWidth")
        return overflow


@contextmanager
def opened(browser: Browser, url: str, path: str = "", script: str = "", **options: Any) -> Iterator[Playground]:
    """The playground of the server at `url` in a new browser profile; at the end nothing has happened that must not.

    Args:
        browser: which.
        url: of the server, with a slash at the end.
        path: what follows it.
        script: JavaScript that runs before the page's own.
        options: of the profile, such as `viewport`.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(WATCH + script)
    complaints: list[str] = []
    hosts: set[str] = set()
    page = context.new_page()
    playground = Playground(page, url)

    def complained(message: Any) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def answered(response: Any) -> None:
        if response.status > 399:
            playground.failed_statuses.append(response.status)

    def asked(request: Any) -> None:
        # Pictures that a visitor attaches are shown from the memory of the page.
        if not request.url.startswith("blob:"):
            hosts.add(urlsplit(request.url).netloc)
        if request.url.endswith("/chat/completions"):
            playground.bodies.append(request.post_data_json)

    page.on("console", complained)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("response", answered)
    context.on("request", asked)
    page.goto(url + path)
    yield playground
    assert playground.run("violations") == []
    assert playground.run("hacked") is False
    assert hosts == {urlsplit(url).netloc}
    assert [text for text in complaints if not text.startswith(CHROMIUM_SAYS)] == []
    context.close()
