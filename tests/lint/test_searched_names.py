"""A file is skipped unread only if no rule can fire in it: the words come from the rules."""

import pytest

from pmapx._src.analysis.known_names import FOLLOWED
from pmapx._src.lint.rules import all_rules
from pmapx._src.lint.rules.removed.host_names import RENAMED as HOSTS
from pmapx._src.lint.rules.removed.removed_names import REPLACEMENTS
from pmapx._src.lint.searched_names import has_uses
from reading import codes, findings

NAMES = sorted({name for rule in all_rules().values() for name in rule.names if "." in name})


def spellings(name):
    """Programs that refer to a name in one way each."""
    module, _, leaf = name.rpartition(".")
    above, _, last = module.rpartition(".")
    yield "in full", f"import {module}\nprint({name})\n"
    yield "imported", f"from {module} import {leaf}\n"
    yield "beside another", f"from {module} import other, {leaf}\n"
    yield "renamed", f"from {module} import {leaf} as mine\nmine\n"
    yield "in parentheses", f"from {module} import (\n    other,  # why\n    {leaf},\n)\n"
    yield "continued", f"from {module} import other, \\\n    {leaf}\n"
    yield "from its module", f"import {module} as m\nprint(m.{leaf})\n"
    if above:
        yield "from an imported module", f"from {above} import {last}\nprint({last}.{leaf})\n"
        yield "by another name", f"from {above} import other, {last} as m\nprint(m.{leaf})\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_a_rule_is_found_in_every_spelling(name):
    missed = [how for how, text in spellings(name) if not has_uses(text.encode())]
    assert missed == []


@pytest.mark.parametrize("name", sorted(REPLACEMENTS))
def test_every_removed_name_fires_alone_in_every_spelling(name, tmp_path):
    for position, (how, text) in enumerate(spellings(name)):
        found = codes(tmp_path / str(position), text, target_jax="0.12")
        assert "PMX519" in found, how


@pytest.mark.parametrize("name", sorted(HOSTS))
def test_every_name_of_a_host_fires_alone(name, tmp_path):
    for position, (how, text) in enumerate(spellings(name)):
        assert "PMX518" in codes(tmp_path / str(position), text), how


@pytest.mark.parametrize("flag", ["jax_pmap_shmap_merge", "JAX_PMAP_NO_RANK_REDUCTION"])
def test_flags_are_found_in_both_cases(flag):
    assert has_uses(f"import jax\nos.environ['{flag}'] = '0'\n".encode())


def test_names_outside_jax_are_followed_ones():
    assert [name for name in NAMES if not name.startswith("jax.") and name not in FOLLOWED] == []


@pytest.mark.parametrize(
    "text",
    [
        "import jax\n",
        "import jax.numpy as jnp\nx: jnp.ndarray = jax.random.key(0)\n",
        "from jax import tree_util, lax\nlax.psum, tree_util.tree_map\n",
        "from jax.tree import map as tree_map\ntree_map\n",
        "import numpy\nnumpy.tree_map\n",
        "from jax import core\ncore.Tracer\n",
    ],
)
def test_other_names_are_not_searched_for(text):
    assert not has_uses(text.encode())


def test_a_count_of_devices_is_known_where_it_is_imported(tmp_path):
    files = {
        "a.py": "import jax, numpy as np\nfrom b import n\njax.devices()\ny = np.stack([x] * n)\n",
        "b.py": "import jax\nn = jax.local_device_count()\n",
    }
    found = findings(tmp_path, files=files, select=("PMX534",))
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("a.py", 4)]


def test_a_file_that_another_imports_first_is_still_checked(tmp_path):
    files = {
        "a.py": "import jax\nimport compat\nf = jax.pmap(compat.tree_map)\n",
        "compat.py": "from jax import jit, tree_map\n",
    }
    found = findings(tmp_path, files=files, select=("PMX519",))
    assert [f.place.path.rpartition("/")[2] for f in found if f.place.line == 1] == ["compat.py"]
