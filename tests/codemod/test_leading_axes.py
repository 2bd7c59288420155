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
    "a parameter of its name": "g = pmap(f)\ndef make(pmap=True):\n    if pmap: return 1",
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


IN_PROCESSES = {
    "axes of another class": "g = pmap(f, in_axes=(0, Other(0, None)))",
    "axes of another module's class": "g = pmap(f, in_axes=(0, states.Other(x=0, y=None)))",
    "axes with a name": "def main():\n    axes = Other(x=0)\n    g = pmap(f, in_axes=(0, axes))",
    "a call by keyword": "g = pmap(f)\ng(x=1)",
}
LONG_IN_PROCESSES = {
    "another axis of another class": "g = pmap(f, in_axes=(0, Other(1, None)))",
    "axes of a function": "g = pmap(f, in_axes=(0, axes_of(0)))",
    "axes assigned twice": "axes = Other(0)\naxes = Other(1)\ng = pmap(f, in_axes=(0, axes))",
}
WRAPPER = """\
import jax
def pmap(f, axis_name="i", **options):
    \"\"\"Over the devices.\"\"\"
    return jax.pmap(f, axis_name, **options)
"""


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


def is_short_in_processes(text, **taken):
    module = Project(["a.py"]).module("a.py", data=f"{text}\n".encode())
    (site,) = [site for site in find_sites(module) if site.kind in ("partial", "wrapper")]
    return maps_leading_axes(module, site, in_processes=True, **taken)


@pytest.mark.parametrize("case", {**SHORT, **IN_PROCESSES})
def test_several_processes_have_trees_and_keywords_too(case):
    assert is_short_in_processes(HEAD + {**SHORT, **IN_PROCESSES}[case])


@pytest.mark.parametrize("case", LONG_IN_PROCESSES)
def test_several_processes_have_only_leading_axes(case):
    assert not is_short_in_processes(HEAD + LONG_IN_PROCESSES[case])


STATIC = "@functools.partial(pmap, static_broadcasted_argnums=(0,))\ndef g(self, x): return x"


@pytest.mark.parametrize("use", [LONG["a static argument"], STATIC])
def test_several_processes_have_static_arguments_where_a_map_needs_them(use):
    assert not is_short_in_processes(HEAD + use)
    assert is_short_in_processes(HEAD + use, has_static=True)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("g = pmap(f)\nh = pmap(f, donate_argnums=0)", True),
        ("@pmap\ndef g(x): return x", True),
        ("g = pmap(f, in_axes=1)", False),
        ("g = pmap(f, devices=some)", False),
        ("g = pmap(f)\nuse(pmap)", False),
    ],
)
def test_a_function_that_hands_on_its_arguments_is_as_short_as_its_calls(use, expected):
    assert is_short_in_processes(WRAPPER + use) == expected
