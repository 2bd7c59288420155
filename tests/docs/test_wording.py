"""The pages use JAX's vocabulary, and none of the sentences that had to be read twice."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

import pmapx

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/guide/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)

# What readers had to read twice.
SENTENCES = [
    "functions that pmap programs live on",
    "a pod that is not there",
    "an error of the new `jax.pmap`",
    "what could be mended",
    "Equal rows are not equal columns",
    "Nobody checks that",
    "lie on one device is told",
    "What is said to vary",
    "takes a row for each",
    "does not hold as they were",
    "what a person would who knows",
    "Have nothing to take a row of",
    "as the guide for the new pmap has it",
    "and then is the program",
    "Where inputs lie",
]

# A word of the first build, and the field's.
WORDS = {
    r"one row a device|row (?:on|for) each(?: device)?": "a leading device axis; per-device shards",
    r"\b(?:that|which|it|they|inputs|arrays|rows) lies?\b": "is placed on",
    r"\blies? (?:on|elsewhere|over|there)\b": "is placed on",
    r"\bmend(?:s|ed)?\b": "fix",
    r"\bunseen\b": "cache miss; unknown",
    r"\bis told\b|\bare told\b|\btells\b": "reports",
    r"\bspeaks? of\b": "describes",
    r"\bbehaviour|\bcolour|\brecognise": "American spelling, as JAX's documentation",
    r"\bas it is had\b|\bcan be had\b|\bcould be had\b": "available",
    r"\bgoes through them\b": "",
    r"\bis no (?:Python|finding|string)\b": "is not a",
    r"\bunless told\b": "by default",
    r"\bfor ever\b": "forever",
    r"\bits kin\b": "related functions, or their names",
    r"\bis waited on\b": "waits for",
    r"\ba map\b|\bof a map\b|\bnested maps?\b": "a pmap, a pmapped function, nested pmaps",
    r"\bof its own\b(?! devices)": "its own, a separate one",
    r"\bmore elements than devices\b": "oversubscription",
    r"\bbut for (?:the|small|arguments|what)\b": "except for",
}


def prose(text):
    """A page without code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`+[^`\n]*`+", "`code`", " ".join(text.split()))


def words_of_the_first_build(text):
    text = prose(text)
    return [
        f"{match[0]!r} ({better}): ...{text[max(0, match.start() - 40) : match.end() + 40]}..."
        for word, better in WORDS.items()
        for match in re.finditer(word, text)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_sentences_that_were_read_twice(page):
    text = " ".join(page.read_text("utf-8").split())
    assert [sentence for sentence in SENTENCES if sentence.lower() in text.lower()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page):
    assert words_of_the_first_build(page.read_text("utf-8")) == []


def test_pages_of_codes_use_the_words_of_the_field():
    pages = runpy.run_path(str(ROOT / "docs" / "make_code_pages.py"))["pages"]()
    for name, text in pages.items():
        assert words_of_the_first_build(text) == [], name


def test_the_help_of_commands_uses_the_words_of_the_field():
    click = pytest.importorskip("click", reason="needs pmapx[tools]")
    from pmapx._src.cli._group import group

    context = click.Context(group)
    for name in group.list_commands(context):
        help_text = group.get_command(context, name).get_help(context)
        assert words_of_the_first_build(help_text) == [], name


def test_docstrings_of_the_api_use_the_words_of_the_field():
    for name in pmapx.__all__:
        assert words_of_the_first_build(inspect.getdoc(getattr(pmapx, name)) or "") == [], name
