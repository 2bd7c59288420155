"""Which maps of a pmap that a project keeps need no more than leading device axes."""

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import find_sites
from pmapx._src.codemod.decide.leading_axes import maps_leading_axes

HEAD = """\
import functools, jax
from typing import NamedTuple
pmap = functools.partial(jax.pmap, axis_name="i")
class Sample(NamedTuple):
    x: object
    y: object
"""
SHORT = {
    "one call": "g = pmap(f)",
    "axes": "g = pmap(f, in_axes=(0, None), out_axes=None)",
    "donation": "g = pmap(f, donate_argnums=(0, 1))",
    "a decorator": "@pmap\ndef g(x): return x",
    "a decorator with options": "@functools.partial(pmap, donate_argnums=0)\ndef g(x): return x",
    "axes of a named tuple": "g = pmap(f, in_axes=(0, Sample(0, None)))",
    "JAX's own beside it": "g = pmap(f)\nh = jax.pmap(f)",
}
LONG = {
    "no call": "",
    "axes of another class": "g = pmap(f, in_axes=(0, Other(0, None)))",
    "another axis in a named tuple": "g = pmap(f, in_axes=(0, Sample(1, None)))",
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
