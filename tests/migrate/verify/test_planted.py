"""Mistakes that are planted in migrated code, each found and told."""

import sys

import pytest
from planted import AFTER, BEFORE

from pmapx.migrate.verify import verify


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    root = tmp_path_factory.mktemp("versions")
    for version, text in (("before", BEFORE), ("after", AFTER)):
        (root / version).mkdir()
        (root / version / "train.py").write_text(text)
    return verify([sys.executable, "train.py"], root / "before", root / "after", devices=8)


def site(found, name):
    (result,) = [each for each in found.sites if each.function == name]
    return result


def test_all(found):
    for s in found.sites:
        print(s)
    print(found.errors, found.differences)
