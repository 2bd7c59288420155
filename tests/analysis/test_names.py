"""Which uses are uses of jax.pmap, by whatever name."""

import pytest

from pmapx._src.lint.check import check
from reading import findings, marked

SPELLINGS = {
    "attribute": "import jax\nf = jax.pmap(g)  # here\n",
    "renamed module": "import jax as j\nf = j.pmap(g)  # here\n",
    "imported": "from jax import pmap\nf = pmap(g)  # here\n",
    "renamed": "from jax import pmap as pm\nf = pm(g)  # here\n",
    "star": "from jax import *\nf = pmap(g)  # here\n",
    "alias": "import jax\npm = jax.pmap\nf = pm(g)  # here\n",
    "getattr": "import jax\nf = getattr(jax, 'pmap')(g)\n",
    "decorator": "import jax\n@jax.pmap  # here\ndef f(x): return x\n",
    "partial decorator": (
        "import functools, jax\n@functools.partial(jax.pmap, axis_name='i')  # here\n"
        "def f(x): return x\n"
    ),
    "partial called": (
        "from functools import partial\nimport jax\n"
        "f = partial(jax.pmap, axis_name='i')(g)  # here\n"
    ),
    "inside a function": "def h(g):\n  import jax\n  return jax.pmap(g)  # here\n",
    "try import": (
        "try:\n  from jax import pmap\nexcept ImportError:\n  from jax.api import pmap\n"
        "import jax\nf = jax.pmap(g)  # here\n"
    ),
    "in a class": "import jax\nclass T:\n  step = staticmethod(jax.pmap(g))  # here\n",
    "in a comprehension": "import jax\nfs = [jax.pmap(g) for g in gs]  # here\n",
    "in a default": "import jax\ndef h(f=jax.pmap(g)): pass  # here\n",
    "in a lambda": "import jax\nh = lambda g: jax.pmap(g)  # here\n",
    "old place": "from jax.api import pmap\nf = pmap(g)  # here\n",
    "conditional import": (
        "import jax\nif many:\n  from jax import pmap\nelse:\n  from jax import pmap\n"
        "f = pmap(g)  # here\n"
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_use_is_found_however_it_is_spelled(tmp_path, spelling):
    found, expected = marked(tmp_path, "PMX501", SPELLINGS[spelling])
    assert found == expected


OTHERS = {
    "own function": "import jax\ndef pmap(f): return f\nh = pmap(g)\n",
    "parameter": "import jax\ndef h(pmap): return pmap(g)\n",
    "other library": "import jax\nfrom toolz import pmap\nh = pmap(g)\n",
    "method": "import jax\nclass Pool:\n  def pmap(self, f): return f\nPool().pmap(g)\n",
    "attribute of another": "import jax\nimport pathos\npathos.pmap(g)\n",
    "rebound": "import jax\nfrom jax import pmap\ndef h():\n  pmap = print\n  pmap(g)\n",
    "string": "import jax\nx = 'jax.pmap(f)'\n",
    "comment": "import jax\n# jax.pmap(f)\n",
    "loop variable": "import jax\nfor pmap in fs:\n  pmap(g)\n",
    "flax's own": "import jax\nfrom flax import nnx\nf = nnx.pmap(g)\n",
    "ours": "import jax\nimport pmapx\nf = pmapx.pmap(g)\n",
}


@pytest.mark.parametrize("case", OTHERS)
def test_functions_of_others_called_pmap_are_left_alone(tmp_path, case):
    assert findings(tmp_path, program=OTHERS[case], select=("PMX50",)) == []


def test_a_re_export_within_the_package_is_followed(tmp_path):
    found = findings(
        tmp_path,
        files={
            "pkg/__init__.py": "from .parallel import spread\n",
            "pkg/parallel.py": "from jax import pmap as spread\n",
            "pkg/train.py": "from pkg import spread\n\nstep = spread(lambda x: x)\n",
        },
        select=("PMX501",),
    )
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("train.py", 3)]


def test_a_relative_import_is_followed(tmp_path):
    found = findings(
        tmp_path,
        files={
            "pkg/__init__.py": "",
            "pkg/compat.py": "import jax\npm = jax.pmap\n",
            "pkg/sub/__init__.py": "",
            "pkg/sub/train.py": "from ..compat import pm\nstep = pm(lambda x: x)\n",
        },
        select=("PMX501",),
    )
    assert [f.place.path.rpartition("/")[2] for f in found] == ["train.py"]


def test_a_package_that_imports_its_own_module_is_followed(tmp_path):
    found = findings(
        tmp_path,
        files={
            "pkg/__init__.py": "from pkg import tools as tools\n",
            "pkg/tools.py": "import jax\nspread = jax.pmap\n",
            "train.py": "import jax\nfrom pkg import tools\nf = tools.spread(g)\n",
        },
        select=("PMX501",),
    )
    assert [f.place.path.rpartition("/")[2] for f in found] == ["train.py"]


def test_a_circular_import_ends(tmp_path):
    found = findings(
        tmp_path,
        files={
            "a.py": "from b import g\nimport jax\nf = jax.pmap(g)\n",
            "b.py": "from a import f\nimport jax\ng = jax.pmap(f)\n",
        },
        select=("PMX501",),
    )
    assert len(found) == 2


def test_a_wrapper_is_one_site_and_its_users_are_none(tmp_path):
    text = """
    import jax

    def my_pmap(f, **kw):
        return jax.pmap(f, axis_name="batch", **kw)  # here

    a = my_pmap(lambda x: x)
    b = my_pmap(lambda x: x, donate_argnums=0)
    """
    found, expected = marked(tmp_path, "PMX501", text)
    assert found == expected
    (finding,) = findings(tmp_path, program=text, select=("PMX501",))
    assert "rewrite this wrapper once" in finding.message


def test_an_assigned_partial_is_one_site(tmp_path):
    text = """
    import functools, jax

    AXIS = "batch"
    pmap = functools.partial(jax.pmap, axis_name=AXIS)  # here
    a = pmap(lambda x: x)
    b = pmap(lambda x: x)
    """
    found, expected = marked(tmp_path, "PMX501", text)
    assert found == expected


def test_callers_of_a_wrapper_are_read_even_without_the_names_jax_or_pmap(tmp_path):
    found = findings(
        tmp_path,
        files={
            "parallel.py": "import jax\ndef spread(f):\n    return jax.pmap(f)\n",
            "train.py": (
                "from parallel import spread\nstep = spread(lambda x: x + 1)\n"
                "def run(x):\n    y = step(x)\n    return y[0]\n"
            ),
        },
        select=("PMX521",),
    )
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("train.py", 5)]


def test_callers_of_callers_of_a_wrapper_are_read_too(tmp_path):
    found = findings(
        tmp_path,
        files={
            "parallel.py": "import jax\ndef spread(f):\n    return jax.pmap(f)\n",
            "steps.py": (
                "from parallel import spread\ndef advance(x):\n    return spread(lambda x: x)(x)\n"
            ),
            "train.py": "from steps import advance\ndef run(x):\n    return advance(x)[0]\n",
        },
        select=("PMX521",),
    )
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("train.py", 3)]


def test_a_function_in_a_function_is_no_wrapper_that_another_file_can_name(tmp_path):
    files = {
        "steps.py": (
            "import jax\ndef train(x):\n    def wrapper(x):\n"
            "        return jax.pmap(lambda x: x)(x)\n    print(wrapper(x))\n"
        ),
        "other.py": "import steps\ndef wrapper(x):\n    return x\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert check([str(tmp_path)]).files_with_uses == 1


VALUES = {
    "keyword": "import jax\nrun(map_fn=jax.pmap)  # here\n",
    "argument": "import jax\nrun(jax.pmap)  # here\n",
    "choice": "import jax\nm = jax.pmap if many else jax.jit  # here\nf = m(g)\n",
    "default": "import jax\ndef run(g, m=jax.pmap): return m(g)  # here\n",
    "dict": "import jax\nmodes = {'parallel': jax.pmap}  # here\n",
    "attribute": "import jax\nclass T:\n  def __init__(self):\n    self.m = jax.pmap  # here\n",
    "branches": ("import jax\nif many:\n  m = jax.pmap  # here\nelse:\n  m = jax.vmap\nf = m(g)\n"),
    "argument that is missing": (
        "import jax\ndef run(g, x, m=None):\n  if m is None:\n    m = jax.pmap  # here\n"
        "  return m(g)(x)\n"
    ),
    "returned": "import jax\ndef mapper():\n  return jax.pmap  # here\n",
}


@pytest.mark.parametrize("case", VALUES)
def test_pmap_as_a_value_is_reported_once(tmp_path, case):
    found, expected = marked(tmp_path, "PMX505", VALUES[case])
    assert found == expected


def test_an_alias_of_pmap_is_not_reported_as_a_value(tmp_path):
    text = """
    import jax
    try:
        from jax import pmap as m
    except ImportError:
        m = jax.pmap
    f = m(g)  # here
    """
    assert marked(tmp_path, "PMX505", text)[0] == []
    found, expected = marked(tmp_path, "PMX501", text)
    assert found == expected


def test_a_name_shadowed_in_one_function_is_pmap_in_the_next(tmp_path):
    text = """
    from jax import pmap

    def a(pmap):
        return pmap(f)

    def b():
        return pmap(f)  # here
    """
    found, expected = marked(tmp_path, "PMX501", text)
    assert found == expected
