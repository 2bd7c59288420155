"""Which maps of a pmap that a project keeps need no more than leading device axes."""

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import find_sites
from pmapx._src.codemod.decide.leading_axes import maps_leading_axes

HEAD = 'import functools, jax\npmap = functools.partial(jax.pmap, axis_name="i")\n'
SHORT = {
    "one call": "g = pmap(f)",
    "axes": "g = pmap(f, in_axes=(0, None), out_axes=None)",
    "donation": "g = pmap(f, donate_argnums=(0, 1))",
    "a decorator": "@pmap\ndef g(x): return x",
    "JAX's own beside it": "g = pmap(f)\nh = jax.pmap(f)",
}
LONG = {
    "no call": "",
    "another axis": "g = pmap(f, in_axes=1)",
    "a static argument": "g = pmap(f, static_broadcasted_argnums=1)",
    "devices": "g = pmap(f, devices=some)",
    "axes that are computed": "g = pmap(f, in_axes=axes)",
    "options that are unpacked": "g = pmap(f, **options)",
    "one call of several": "g = pmap(f)\nh = pmap(f, in_axes=-1)",
    "a call by keyword": "g = pmap(f)\ng(x=1)",
    "passed on": "g = pmap(f)\nuse(pmap)",
    "kept again": "g = pmap(f)\nh = functools.partial(pmap, in_axes=1)",
}


def is_short(text):
    module = Project(["a.py"]).module("a.py", data=f"{HEAD}{text}\n".encode())
    (site,) = [site for site in find_sites(module) if site.kind == "partial"]
    return maps_leading_axes(module, site)


@pytest.mark.parametrize("case", SHORT)
def test_few_options(case):
    assert is_short(SHORT[case])


@pytest.mark.parametrize("case", LONG)
def test_more_options(case):
    assert not is_short(LONG[case])
