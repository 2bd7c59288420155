"""What all pages share: one document, a policy, data that stays data."""

import re

import pytest

from pmapx._src.pages import shell

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800"]


def test_data_in_a_page_has_no_character_that_html_knows():
    written = shell.as_json({"key<": HOSTILE})
    assert written.isascii()
    assert not set("<>&\n") & set(written)


def test_data_comes_back_as_it_was():
    import json

    assert json.loads(shell.as_json({"key<": HOSTILE})) == {"key<": HOSTILE}


def test_a_page_allows_its_own_script_and_style_and_nothing_else():
    page = shell.render("<b>", {"names": HOSTILE})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall("sha256-", policy)) == 2
    assert len(re.findall(r"<script\b", page)) == 2  # the data and the script
    assert "<title>&lt;b&gt;</title>" in page
    assert not re.search(r"\b(?:src|href)=", page.partition("<body>")[0])


def test_files_of_a_page_do_not_end_its_elements():
    from importlib import resources

    for file in resources.files("pmapx._src.pages").iterdir():
        if file.name.endswith((".js", ".css")):
            text = file.read_text("utf-8")
            assert "</" not in text, file.name
            assert "<!--" not in text, file.name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


def test_a_block_with_a_name_that_is_markup_is_refused():
    with pytest.raises(ValueError, match="name of a block"):
        shell.render("x", {'"><script>': 1})
