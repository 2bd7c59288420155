"""Every public name has a docstring, and the examples in it run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import pmapx

# The command line needs the extra `tools`; its modules are tested with it.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pmapx.__path__, "pmapx.")
    if not module.name.startswith(("pmapx._src.cli", "pmapx.__main__"))
)
PUBLIC = [
    name for name in pmapx.__all__ if callable(getattr(pmapx, name)) and not name.startswith("__")
]


@pytest.mark.parametrize("name", ["pmapx", *MODULES])
def test_the_examples_of_a_module_run(name):
    module = importlib.import_module(name)

    result = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )

    assert result.failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    assert inspect.getdoc(getattr(pmapx, name))


@pytest.mark.parametrize("name", [n for n in PUBLIC if inspect.isfunction(getattr(pmapx, n))])
def test_a_public_function_has_an_example_that_runs(name):
    examples = doctest.DocTestFinder().find(getattr(pmapx, name), name, globs={})

    assert any(found.examples for found in examples)


def test_what_is_exported_is_there():
    assert all(hasattr(pmapx, name) for name in pmapx.__all__)
