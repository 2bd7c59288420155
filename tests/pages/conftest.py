"""Lets the tests of this folder import what they share; one browser for all of them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def browser():
    import browser

    if browser.executable() is None:
        pytest.skip("needs Chromium")
    running = browser.Browser()
    yield running
    running.close()


@pytest.fixture
def open_html(browser, tmp_path):
    """Writes a page to a file and opens that."""

    def open_page(html, **options):
        path = tmp_path / "page.html"
        path.write_text(html, "utf-8")
        browser.open(path, **options)
        return browser

    return open_page
