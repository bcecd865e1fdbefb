"""A Chromium with the playground in it, for one file of tests: while it is open, its thread runs an event loop."""

from collections.abc import Iterator
from threading import Thread

import pytest
from browser import chromium
from play.visit import SMALL, visit

from longlag.play import Playground


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    with Playground(0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the playground is not tested: no playwright")
    path = chromium()
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture(scope="module")
def opened(context, server):
    """The page, loaded once, and what its console said and its requests asked for since the last look."""
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if server.address not in request.url else None)
    page.set_default_timeout(10_000)
    page.goto(f"{server.address}#{SMALL}")
    return page, said


@pytest.fixture
def page(opened):
    """The page as a visitor finds it; whatever the console says is an error of the test."""
    page, said = opened
    visit(page, SMALL)
    yield page
    found = [line for line in said if not line.startswith(("blob:", "data:"))]
    said.clear()
    assert found == []
