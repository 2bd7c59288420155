"""Each rule's page: complete, and its examples before and after hold."""

import re

import pytest

from pmapx._src.lint.rules import all_rules
from reading import codes

RULES = all_rules()
SECTIONS = ("What", "Why", "Before", "After", "Safety", "Guide")
BLOCK = re.compile(r"\*\*(Before|After)\*\*\n\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("code", RULES)
def test_a_page_has_every_section_in_order(code):
    page = RULES[code].page()
    places = [page.find(f"**{section}") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("code", RULES)
def test_a_rule_is_in_the_file_of_its_name(code):
    rule = RULES[code]
    assert rule.__module__.rpartition(".")[2].replace("_", "-") == rule.slug()


@pytest.mark.parametrize("code", RULES)
def test_the_rule_fires_on_its_before_and_not_on_its_after(code, tmp_path):
    blocks = dict(BLOCK.findall(RULES[code].page()))
    options = {"target_jax": "0.12"}
    assert code in codes(tmp_path / "before", blocks["Before"], confidence="medium", **options)
    assert code not in codes(tmp_path / "after", blocks["After"], **options)


@pytest.mark.parametrize("code", [c for c in RULES if c != "PMX500"])
def test_an_after_block_is_python(code):
    compile(dict(BLOCK.findall(RULES[code].page()))["After"], code, "exec")


def test_every_code_is_of_the_block_of_rules():
    assert all(re.fullmatch("PMX5[0-9]{2}", code) for code in RULES)
