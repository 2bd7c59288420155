"""What all pages share: one document, a policy, data that stays data, writing in one step."""

import os
import re
import stat

import pytest

from pmapx._src.pages import escaping, shell, writing

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800"]


def test_data_in_a_page_has_no_character_that_html_knows():
    written = escaping.as_json({"key<": HOSTILE})
    assert written.isascii()
    assert not set("<>&\n") & set(written)


def test_data_comes_back_as_it_was():
    import json

    assert json.loads(escaping.as_json({"key<": HOSTILE})) == {"key<": HOSTILE}


def test_a_page_allows_its_own_script_and_style_and_nothing_else():
    page = shell.render(shell.Page("<b>", data={"names": HOSTILE}))
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
        shell.render(shell.Page("x", data={'"><script>': 1}))


def test_a_page_takes_the_place_of_the_one_before(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o640)
    writing.write(str(path), "new\ud800")
    assert path.read_bytes() == b"new?"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_new_page_has_the_usual_mode(tmp_path):
    other = tmp_path / "other"
    other.touch()
    writing.write(str(tmp_path / "page.html"), "new")
    assert (tmp_path / "page.html").stat().st_mode == other.stat().st_mode


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "page.html"
    path.write_text("old")
    monkeypatch.setattr(writing.os, "replace", fail)
    with pytest.raises(writing.UnwritableError, match=r"page\.html: no space left on device"):
        writing.write(str(path), "new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["page.html"])


@pytest.mark.parametrize("where", ["missing/page.html", "."])
def test_a_place_that_cannot_be_written_is_known_before(tmp_path, where):
    with pytest.raises(writing.UnwritableError, match="cannot write"):
        writing.check(str(tmp_path / where))
    with pytest.raises(writing.UnwritableError, match="cannot write"):
        writing.write(str(tmp_path / where), "new")


def test_a_link_to_a_page_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "there" / "page.html")
    writing.write(str(link), "new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "page.html").read_text() == "new"
