"""What the documentation lists is what there is: public names, codes, files behind links."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

import pmapx

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("docs/**/*.md")])
MADE = {"errors.md", "rules.md", "findings.md"}  # by docs/make_code_pages.py


def documented():
    """The names that the page of the API takes from docstrings."""
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def test_the_page_of_the_api_has_the_public_names_and_no_others():
    modules = {"errors", "reports", "testing"}
    shown = {name.split(".")[1] for name in documented()}
    assert shown == set(pmapx.__all__) - {"__version__", "AuditReport"}
    assert {name for name in documented() if name.count(".") > 1} == {
        *(f"pmapx.reports.{name}" for name in pmapx.reports.__all__),
        *(f"pmapx.testing.{name}" for name in pmapx.testing.__all__),
        "pmapx.errors.explain",
    }
    assert modules <= shown


@pytest.mark.parametrize("name", documented())
def test_a_name_on_the_page_of_the_api_is_there(name):
    home, _, last = name.rpartition(".")
    assert hasattr(importlib.import_module(home), last)


def test_every_code_has_a_page():
    from pmapx._src import errors
    from pmapx._src.audit.findings import all_findings
    from pmapx._src.lint.rules import all_rules

    pages = runpy.run_path(str(ROOT / "docs" / "make_code_pages.py"))["pages"]()
    assert pages.keys() == MADE
    for name, codes in (
        ("errors.md", errors.CODES),
        ("rules.md", all_rules()),
        ("findings.md", all_findings()),
    ):
        for code in codes:
            section = re.search(rf"^## {code} .*{{ #{code.lower()} }}\n\n(.+)", pages[name], re.M)
            assert section, code
            assert f"[{code}](#{code.lower()})" in pages[name]
    assert "Caught as `_" not in pages["errors.md"]  # No private class.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        target = link.partition("#")[0]
        if not target or "://" in target or target in MADE or Path(target).name in MADE:
            continue
        assert (page.parent / target).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_headings_that_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        there = (page.parent / target) if target else page
        if not anchor or "://" in link or there.name in MADE:
            continue
        assert anchor in anchors(there), link


def anchors(page):
    """The anchors that mkdocs and GitHub alike give to a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}
