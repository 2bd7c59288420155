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
