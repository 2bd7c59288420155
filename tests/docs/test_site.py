"""The built site in a browser: nothing overflows or fails, code is code, search finds names.

`make docs` runs it on the site that it built (PMAPX_SITE); elsewhere the site is built first.
"""

import contextlib
import functools
import http.server
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "pages"))

import browser as browsers  # noqa: E402

pytestmark = pytest.mark.slow  # It builds the site; `make docs` runs it.

PAGES = [
    "",
    "guide/fsdp/",
    "guide/error-messages/",
    "errors/",
    "rules/",
    "api/",
    "migrate/",
    "check/",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if "PMAPX_SITE" in os.environ:
        return ROOT / os.environ["PMAPX_SITE"]
    pytest.importorskip("mkdocs", reason="needs the dependency group docs")
    pytest.importorskip("mkdocstrings", reason="needs the dependency group docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "PMAPX_REPOSITORY": "https://example.org/pmapx",
        "PMAPX_EDIT_URI": "edit/main/docs/",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served: search needs more than files."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    if browsers.executable() is None:
        pytest.skip("needs Chromium")
    running = browsers.Browser()
    # Each visit is a first one: the theme remembers its colors.
    forget = "try { localStorage.clear() } catch {}"
    running.send("Page.addScriptToEvaluateOnNewDocument", source=forget)
    yield running
    running.close()


VISITS = itertools.count()


def visit(browser, url, width=1400, dark=False):
    browser.look(width, 900, dark)
    browser.send("Page.navigate", url="about:blank")
    browser.events.clear()
    url += f"?visit={next(VISITS)}"  # The page of before, which may still be there, had another.
    scheme = "slate" if dark else "default"
    loaded = (
        f"document.readyState === 'complete' && location.href === {json.dumps(url)}"
        # The theme sets the colors later, when the browser is idle.
        f" && document.body.getAttribute('data-md-color-scheme') === '{scheme}'"
    )
    # A navigation is lost now and then, when that to the empty page ends after it began.
    for _ in range(3):
        browser.send("Page.navigate", url=url)
        deadline = time.monotonic() + browsers.TIMEOUT / 3
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):  # A page that is left answers with an error.
                if browser.value(f"Boolean({loaded})"):
                    return
            time.sleep(0.02)
    raise AssertionError(f"never true: {loaded}")


def errors(browser):
    browser.value("0")
    found = []
    for event in browser.events:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            found.append(parameters["exceptionDetails"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            found.append(parameters["entry"]["text"])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_examples_are_code_and_not_quotes(site, page):
    html = (site / page / "index.html").read_text("utf-8")
    assert "<blockquote" not in html
    assert "BLANKLINE" not in html
    assert ("<pre" in html) or page == "errors/"
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)


def test_names_keep_their_case(site):
    errors_page = (site / "errors" / "index.html").read_text("utf-8")
    assert "In_axes" not in errors_page
    assert "pmapSharding" not in errors_page


def test_the_search_index_has_the_names_that_people_look_for(site):
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    text = {entry["location"]: entry["title"] + entry["text"] for entry in index["docs"]}
    for name in ("device_put_replicated", "PmapSharding", "jax_pmap_shmap_merge", "CopyArrays"):
        assert any(name in each for where, each in text.items() if "error-messages" in where)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_overflows_and_nothing_fails(browser, address, page, width, dark):
    visit(browser, address + page, width, dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    # What is wider than its column scrolls by itself.
    cut = browser.value(
        "[...document.querySelectorAll('.md-content__inner > *, .doors > div')]"
        ".filter(each => each.getBoundingClientRect().right > window.innerWidth + 1)"
        ".map(each => each.outerHTML.slice(0, 80))"
    )
    assert cut == []
    assert browser.value("document.querySelectorAll('pre code').length > 0") or page == "errors/"
    assert errors(browser) == []


@pytest.mark.parametrize("name", ["device_put_replicated", "PmapSharding", "incompatible devices"])
def test_search_finds_what_people_paste(browser, address, name):
    visit(browser, address)
    browser.value(
        "(() => { const field = document.querySelector('[data-md-component=search-query]');"
        f"field.focus(); field.value = {json.dumps(name)};"
        "field.dispatchEvent(new Event('input', {bubbles: true}));"
        "field.dispatchEvent(new Event('keyup', {bubbles: true})); })()"
    )
    browser.wait_for("document.querySelectorAll('.md-search-result__link').length > 0")
    links = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"
    assert any("error-messages" in link for link in browser.value(links))


def test_messages_are_wrapped_and_not_scrolled(browser, address):
    visit(browser, address + "guide/error-messages/")
    wide = browser.value(
        "[...document.querySelectorAll('.language-text code')]"
        ".filter(each => each.scrollWidth > each.clientWidth + 1).length"
    )
    assert wide == 0
    assert browser.value("document.querySelectorAll('.language-text code').length") > 20


def test_the_landing_page_has_four_doors_and_links_to_the_repository(browser, address, site):
    visit(browser, address)
    doors = browser.value(
        "[...document.querySelectorAll('.doors h3')].map(e => e.innerText.trim())"
    )
    assert [door.rstrip("¶").strip() for door in doors] == [
        "Run it",
        "Move it",
        "Prove it",
        "Gate it",
    ]
    if "PMAPX_SITE" not in os.environ:
        assert 'href="https://example.org/pmapx"' in (site / "index.html").read_text("utf-8")
        assert "edit/main/docs/index.md" in (site / "index.html").read_text("utf-8")
