"""Two runs of functions that are watched in this process, and what is said of each site."""

import jax
import numpy as np
import pytest
from watched_functions import Watched, double

from pmapx._src.verify.compare.compare_arrays import Tolerance
from pmapx._src.verify.compare.summary import last_line, sum_up
from pmapx._src.verify.record.reader import Run
from pmapx._src.verify.uses import Use

N = jax.device_count()
ROWS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


@pytest.fixture
def summed(tmp_path):
    """Run a program in this process as it is before and after; what comes of it by function."""

    def summed(before, after, uses=(), status=0, folder=""):
        runs = []
        for name, program, ended in (("before", before, 0), ("after", after, status)):
            (tmp_path / folder / name).mkdir(parents=True)
            watched = Watched(tmp_path / folder / name)
            program(watched)
            runs.append(Run(ended, 1.0, [watched.records], ""))
        return {site.function: site for site in sum_up(*runs, uses, Tolerance()).sites}

    return summed


def test_a_map_that_is_only_traced_is_verified_through_what_is_around_it(summed):
    def program(watched):
        f = watched.pmap(double)
        watched.grad(lambda x: f(x).sum())(ROWS)

    site = summed(program, program)["double"]
    assert (site.state, site.agreement) == ("verified", "equal to the bit")
    assert site.detail.startswith("inside <lambda> (test_summary.py:")


def test_a_map_inside_what_is_not_watched_is_unverified(summed):
    def program(watched):
        jax.jit(watched.pmap(double))(ROWS)

    site = summed(program, program)["double"]
    assert site.state == "unverified"
    assert site.detail.startswith("called only inside a traced function")


def test_a_map_that_is_gone_is_different(summed):
    site = summed(lambda watched: watched.pmap(double)(ROWS), lambda watched: None)["double"]
    assert (site.state, site.detail) == ("different", "it is not called in the migrated code")


def test_a_map_that_only_placed_its_argument_may_be_gone(summed):
    site = summed(lambda watched: watched.pmap(lambda x: x)(ROWS), lambda watched: None)["<lambda>"]
    assert (site.state, site.agreement, site.calls) == ("verified", "equal to the bit", 1)
    assert site.notes == ("it returns its arguments, and the migrated code does not call it",)


def test_maps_of_one_name_are_matched_by_their_arrays_before_their_order(summed):
    def before(watched):
        place, add = watched.pmap(lambda x: x), watched.pmap(lambda x, y: x + y)
        add(place(ROWS), place(ROWS)), place(ROWS)

    site = summed(before, lambda watched: watched.pmap(lambda x, y: y + x)(ROWS, ROWS))
    assert site["<lambda>"].state == "verified"


def test_a_map_may_become_a_jitted_lambda_around_its_function(summed):
    placed = jax.device_put(ROWS, jax.NamedSharding(jax.make_mesh((N,), ("i",)), jax.P("i")))

    def place(x):
        return x

    def before(watched):
        watched.pmap(place)(ROWS), watched.pmap(double)(ROWS)

    for factor, state in ((2, "verified"), (3, "different")):

        def after(watched, factor=factor):
            watched.jit(lambda x: (factor * x.reshape(-1)).reshape(x.shape))(placed)

        found = summed(before, after, folder=state)
        assert found["double"].state == state
        assert found["place"].notes[0].startswith("it returns its arguments")


def test_a_map_that_a_failing_run_did_not_come_to_is_unverified(summed):
    called = lambda watched: watched.pmap(double)(ROWS)
    site = summed(called, lambda watched: None, status=1)["double"]
    assert site.state == "unverified"
    assert site.detail == "the migrated version ended before it was called"


def test_a_map_that_is_new_is_different(summed):
    site = summed(lambda watched: None, lambda watched: watched.pmap(double)(ROWS))["double"]
    assert (site.state, site.detail) == ("different", "it is called in the migrated code only")


def test_a_call_that_raises_after_the_change_only_is_different(summed):
    def broken(watched):
        def double(x):
            raise ValueError("no such thing")

        with pytest.raises(ValueError, match="no such thing"):
            watched.pmap(double)(ROWS)

    site = summed(lambda watched: watched.pmap(double)(ROWS), broken)["double"]
    assert site.detail == "call 0 raised ValueError: no such thing"


def test_a_different_input_is_reported_as_an_input(summed):
    site = summed(
        lambda watched: watched.pmap(double)(ROWS), lambda watched: watched.pmap(double)(ROWS + 1)
    )["double"]
    assert site.detail.startswith("call 0: argument 0 'x' got different values: by up to 1 ")


def test_outputs_of_another_structure_are_told(summed):
    pair = lambda x: {"a": x, "b": x}
    one = lambda x: {"a": x}
    pair.__name__ = one.__name__ = "f"
    site = summed(
        lambda watched: watched.pmap(pair)(ROWS), lambda watched: watched.pmap(one)(ROWS)
    )["f"]
    assert site.detail == "call 0: 2 outputs became 1, without ['b']"


def test_a_pmap_that_is_passed_on_is_reached_through_what_it_makes(summed):
    passed_on = Use("test_summary.py", 1, 1, 1, "partial", "")
    other = Use("lab.py", 7, 7, 7, "call", "g")
    called = lambda watched: watched.pmap(double)(ROWS)
    found = summed(called, called, [passed_on, other])
    assert (found["double"].line, found["double"].state) == (1, "verified")
    assert found["g"].detail == "the command never reached it"


def test_a_call_that_is_missing_is_not_the_first_to_differ(summed):
    def before(watched):
        f, g = watched.pmap(double), watched.pmap(lambda x: x)
        f(ROWS), g(ROWS), f(ROWS)

    def after(watched):
        f, g = watched.pmap(double), watched.pmap(lambda x: x)
        f(ROWS), g(ROWS + 1)

    found = summed(before, after)
    assert found["double"].detail == "called 2 times before and once after"
    assert found["<lambda>"].order < found["double"].order


def test_the_error_of_a_program_is_not_the_note_on_its_traceback():
    output = "ValueError: no\n--------------------\nFor simplicity, JAX has removed its frames.\n"
    assert last_line(output) == ": ValueError: no"
