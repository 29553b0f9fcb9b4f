"""Pages of the playground on the server that most tests talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.playground.browser import Browser, Playground, opened


@pytest.fixture
def playground(browser: Browser, server: RunningServer) -> Iterator[Playground]:
    with opened(browser, server.openai_url.removesuffix("v1")) as opened_page:
        opened_page.page.wait_for_selector("#model option", state="attached")
        yield opened_page


@pytest.fixture(scope="module")
def modules(browser: Browser, server: RunningServer) -> Iterator[Playground]:
    """A page whose modules are tried by themselves."""
    with opened(browser, server.openai_url.removesuffix("v1")) as opened_page:
        yield opened_page
