"""What the migration makes unused goes with it; what was unused before stays."""

import pytest

from pmapx._src.codemod.migration import migrate
from pmapx._src.codemod.unused_names import without_unused

GONE = {
    "an assignment": ("n = jax.device_count()\nf(n)\n", "n = jax.device_count()\nf()\n", "f()\n"),
    "a function in a function": (
        "def f():\n    def g():\n        return 1\n\n    return g()\n",
        "def f():\n    def g():\n        return 1\n\n    return 2\n",
        "def f():\n    return 2\n",
    ),
    "a lambda": ("g = lambda x: x\nf(g)\n", "g = lambda x: x\nf()\n", "f()\n"),
    "names that only the first used": (
        "n = jax.device_count()\nm = (n, 2)\nf(m)\n",
        "n = jax.device_count()\nm = (n, 2)\nf()\n",
        "f()\n",
    ),
    "an import": (
        "import a\nimport b\na.f(b)\n",
        "import a\nimport b\na.f()\n",
        "import a\na.f()\n",
    ),
    "an import with which the file begins": (
        "import a\n\nimport b\na.f(b)\n",
        "import a\n\nimport b\nf(b)\n",
        "import b\nf(b)\n",
    ),
    "a function with which the file ends": (
        "f = lambda: g()\n\n\ndef g():\n    return 1\n",
        "f = lambda: 2\n\n\ndef g():\n    return 1\n",
        "f = lambda: 2\n",
    ),
    "one name of an import": (
        "from a import (\n    b,\n    c,\n)\nb(c)\n",
        "from a import (\n    b,\n    c,\n)\nb()\n",
        "from a import (\n    b,\n)\nb()\n",
    ),
    "two imports of a line": ("import a, b\nf(a, b)\n", "import a, b\nf()\n", "f()\n"),
    "its comment about devices": (
        "f()\n# One shard per device.\nn = jax.device_count()\ng(n)\n",
        "f()\n# One shard per device.\nn = jax.device_count()\ng()\n",
        "f()\ng()\n",
    ),
    "a name that is assigned to itself": (
        "def f(s):\n    s = first(s)  # unreplicate\n    return s\n",
        "def f(s):\n    s = s  # unreplicate\n    return s\n",
        "def f(s):\n    return s\n",
    ),
    "a sentence about devices": (
        "# Train.\n# Takes the first copy\n# of all.\ns = first(s)\nf(s)\n",
        "# Train.\n# Takes the first copy\n# of all.\ns = s\nf(s)\n",
        "# Train.\nf(s)\n",
    ),
    "no comment about something else": (
        "# Now train.\ns = first(s)\nf(s)\n",
        "# Now train.\ns = s\nf(s)\n",
        "# Now train.\nf(s)\n",
    ),
}
KEPT = {
    "assigned to itself before": ("s = s\nf(s, n)\n", "s = s\nf(s)\n"),
    "assigned to itself, alone in its block": (
        "if x:\n    s = first(s)\nf(s)\n",
        "if x:\n    s = s\nf(s)\n",
    ),
    "assigned to itself in a class": (
        "class A:\n    s = first(s)\nf(s)\n",
        "class A:\n    s = s\nf(s)\n",
    ),
    "unused before": ("n = 1\nf()\n", "n = 1\ng()\n"),
    "another effect": ("n = load()\nf(n)\n", "n = load()\nf()\n"),
    "used in another function": (
        "n = 1\ndef f():\n    return n\ndef g():\n    return n\n",
        "n = 1\ndef f():\n    return n\ndef g():\n    return 2\n",
    ),
    "a second function of the name": (
        "def f():\n    a = 1\ndef f():\n    a = 1\n    return a\n",
        "def f():\n    a = 1\ndef f():\n    a = 1\n    return a + 1\n",
    ),
    "bound by a loop too": (
        "n = 1\nfor n in x:\n    f(n)\n",
        "n = 1\nfor n in x:\n    f()\n",
    ),
    "named in a string": ("__all__ = ['n']\nn = 1\nf(n)\n", "__all__ = ['n']\nn = 1\nf()\n"),
    "read by locals()": (
        "def f():\n    n = 1\n    return n, locals()\n",
        "def f():\n    n = 1\n    return locals()\n",
    ),
    "the only statement of its block": ("if x:\n    n = 1\nf(n)\n", "if x:\n    n = 1\nf()\n"),
    "an import with a comment": ("import a  # first\nf(a)\n", "import a  # first\nf()\n"),
    "global elsewhere": (
        "def f():\n    global n\n    n = 1\ndef g():\n    return n\n",
        "def f():\n    global n\n    n = 1\ndef g():\n    return 2\n",
    ),
    "a decorated function": (
        "@register\ndef g(): pass\nf(g)\n",
        "@register\ndef g(): pass\nf()\n",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_what_loses_its_last_use_goes(name, tmp_path):
    before, after, wanted = GONE[name]
    path = str(tmp_path / "a.py")
    found = without_unused(path, before.encode(), after.encode(), lambda name: False)
    assert found.decode() == wanted


@pytest.mark.parametrize("name", KEPT)
def test_what_may_still_be_used_stays(name, tmp_path):
    before, after = KEPT[name]
    path = str(tmp_path / "a.py")
    found = without_unused(path, before.encode(), after.encode(), lambda name: False)
    assert found.decode() == after


def test_what_another_file_may_take_stays(tmp_path):
    before, after = b"n = 1\nf(n)\n", b"n = 1\nf()\n"
    assert without_unused(str(tmp_path / "a.py"), before, after, lambda name: name == "n") == after


def test_a_packages_public_names_stay_and_private_ones_go(tmp_path):
    (tmp_path / "__init__.py").touch()
    before = b"n = 1\n_m = 2\nf(n, _m)\n"
    after = b"n = 1\n_m = 2\nf()\n"
    found = without_unused(str(tmp_path / "a.py"), before, after, lambda name: False)
    assert found == b"n = 1\nf()\n"


@pytest.mark.parametrize(("test", "stays"), [("==", False), ("!=", True)])
def test_names_of_a_packages_main_program_go(tmp_path, test, stays):
    (tmp_path / "__init__.py").touch()
    head = f"if __name__ {test} '__main__':\n"
    before, after = (f"{head}    g = lambda x: x\n    f({used})\n" for used in ("g", ""))
    found = without_unused(
        str(tmp_path / "a.py"), before.encode(), after.encode(), lambda name: False
    )
    assert found.decode() == (after if stays else f"{head}    f()\n")


@pytest.mark.parametrize(
    ("other", "stays"),
    [
        ("import jax\nimport steps\nf = jax.pmap(steps.g)\nprint(jax.utils)\n", False),
        ("import jax\nimport steps\nf = jax.pmap(steps.g)\nprint(steps.utils)\n", True),
        ("import jax\nimport steps\nf = jax.pmap(getattr(steps, 'utils'))\n", True),
    ],
)
def test_an_import_stays_if_another_file_reaches_it_through_the_module(tmp_path, other, stays):
    first = "import jax\nfrom flax import jax_utils as utils\n\ndef g(x):\n    return x\n\n"
    text = "def main(w):\n    w = utils.replicate(w)\n    return jax.pmap(g)(w)\n"
    (tmp_path / "steps.py").write_text(first + text)
    (tmp_path / "other.py").write_text(other)
    after = {file.path: file.after.decode() for file in migrate([str(tmp_path)]).changed}
    assert ("as utils" in after[str(tmp_path / "steps.py")]) is stays
