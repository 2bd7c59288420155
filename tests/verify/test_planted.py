"""Mistakes that are planted in migrated code, each found and told."""

import sys

import pytest
from planted import AFTER, BEFORE

from pmapx._src.verify.verify import verify


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


@pytest.mark.behaviour("H1")
def test_gradients_that_are_summed_twice_are_8_times_as_large(found):
    result = site(found, "gradients")
    assert result.state == "different"
    assert result.detail == "call 0: the output: about 8 times as large"


@pytest.mark.behaviour("H1")
def test_a_gradient_summed_twice_is_found_in_the_updated_parameters(found):
    result = site(found, "update")
    assert result.state == "different"
    assert result.detail.startswith("call 0: output ['w']: by up to ")
    assert result.detail.endswith("; its change in the call is about 8 times as large")


def test_swapped_axes_are_named(found):
    result = site(found, "spread")
    assert (result.state, result.calls) == ("different", 1)
    assert "(8, 3, 4) became (8, 4, 3), the same with axes 1 and 2 swapped" in result.detail


def test_a_forgotten_donation_is_a_difference_even_if_the_values_are_equal(found):
    result = site(found, "donating")
    assert result.state == "different"
    assert "call 0: argument 0 'w' is no longer donated" in result.detail


def test_a_dropped_pmean_is_found_because_shards_are_no_longer_equal(found):
    result = site(found, "mean")
    assert result.state == "different"
    assert "the output: equal on all devices before, and not after; by up to" in result.detail


def test_state_that_is_now_replicated_is_verified_with_a_note(found):
    result = site(found, "right")
    assert (result.state, result.agreement, result.calls) == ("verified", "equal to the bit", 2)
    assert "argument 0 'w': (8, 3) of equal shards is one replicated (3,)" in result.notes
    assert "argument 1 'x': (8, 4, 3) is now (32, 3)" in result.notes
    assert "output [1]: (8,) of equal shards is one replicated ()" in result.notes


def test_a_site_that_the_command_did_not_reach_is_unverified(found):
    result = site(found, "unreached")
    assert (result.state, result.detail) == ("unverified", "the command never reached it")


def test_the_first_to_differ_is_where_to_look(found):
    assert (found.first.function, found.exit_code()) == ("gradients", 1)
    assert (found.errors, found.differences) == ((), ())


def test_a_site_is_found_by_its_line_before(found):
    line = 1 + BEFORE.splitlines().index('both = jax.pmap(right, axis_name="i")')
    assert found.at("train.py", line) == site(found, "right")
