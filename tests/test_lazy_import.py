"""Importing the package costs nothing until a name of it is used."""

import pytest

import pmapx


def test_jax_is_imported_with_the_first_name_and_not_before(run_python):
    printed = run_python(
        "import sys, pmapx, pmapx._src.lint.check, pmapx._src.cli\n"
        "print('jax' in sys.modules)\n"
        "pmapx.pmap\n"
        "print('jax' in sys.modules)\n"
    )
    assert printed.split() == ["False", "True"]


def test_every_public_name_is_there_and_listed():
    assert all(getattr(pmapx, name) is not None for name in pmapx.__all__)
    assert set(pmapx.__all__) <= set(dir(pmapx))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pmapx' has no attribute 'pmpa'"):
        _ = pmapx.pmpa
    assert not hasattr(pmapx, "__wrapped__")


def test_errors_is_an_attribute_without_an_import(run_python):
    assert run_python("import pmapx; print(pmapx.errors.CODES['PMX101'].code)").strip() == "PMX101"
