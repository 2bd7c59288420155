"""Functions that are watched in this process: what is seen of their calls, and what is not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched_functions import Watched, double

from pmapx._src.emitted.functions import find
from pmapx._src.verify.record.recording import Recording
from pmapx._src.verify.record.writer import Recorder

N = jax.device_count()
ROWS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def rows(f):
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    return functools.partial(f, mesh=mesh, in_specs=spec, out_specs=spec)


def test_a_map_is_recorded_with_its_place(watched):
    f = watched.pmap(double)
    f(ROWS), f(ROWS)
    (function,) = watched.records.functions.values()
    assert (function.name, function.file, len(function.calls)) == ("double", "test_recording.py", 2)
    assert function.scope == "test_a_map_is_recorded_with_its_place"


def test_a_jit_without_a_map_is_not_recorded(watched):
    watched.jit(double)(ROWS)
    assert watched.called() == []


def test_a_jit_with_a_map_inside_is_recorded_in_its_place(watched):
    f = watched.jit(rows(watched.shard_map)(double))
    f(ROWS), f(ROWS)
    assert watched.called() == [("jit", "double", 2)]


def test_a_jit_that_makes_its_map_when_it_is_traced_is_recorded_too(watched):
    @watched.jit
    def step(x):
        return rows(watched.shard_map)(double)(x) + 1

    step(ROWS)
    assert watched.called() == [("jit", "step", 1)]


def test_functions_that_migrate_writes_are_recorded_where_they_are_used(watched):
    names = {"jax": jax}
    for name in ("each_leaf", "over_mesh", "on_each_device"):
        exec(find(name).text, names)
    mapped = names["on_each_device"](functools.partial(double))
    jax.jit(mapped)(ROWS)  # JAX knows it from here, and does not trace it again.
    watched.jit(mapped)(ROWS)
    assert watched.called() == [("jit", "double", 1)]


def test_a_map_alone_is_recorded(watched):
    rows(watched.shard_map)(double)(ROWS)
    assert watched.called() == [("shard_map", "double", 1)]


def test_a_pmap_under_grad_is_recorded_through_it(watched):
    f = watched.pmap(double)
    watched.grad(lambda x: f(x).sum())(ROWS)
    assert watched.called() == [("grad", "<lambda>", 1)]
    mapped, gradient = watched.records.functions.values()
    assert mapped.inside == {gradient.number}


def test_a_map_inside_what_is_not_watched_is_known_to_be_unseen(watched):
    f = watched.pmap(double)
    jax.jit(f)(ROWS)
    (function,) = watched.records.functions.values()
    assert (function.inside, function.calls) == ({-1}, [])


def test_a_compiled_map_is_recorded(watched):
    compiled = watched.pmap(double).lower(ROWS).compile()
    compiled(jnp.asarray(ROWS))
    assert watched.called() == [("pmap", "double", 1)]


def test_a_method_is_bound(watched):
    class Trainer:
        @functools.partial(watched.jit, static_argnums=0)
        def step(self, x):
            return rows(watched.shard_map)(double)(x)

    np.testing.assert_array_equal(Trainer().step(ROWS), 2 * ROWS)
    assert watched.called() == [("jit", "step", 1)]


def test_two_maps_on_one_line_are_two(watched):
    watched.pmap(lambda x: x)(ROWS), watched.pmap(lambda x: -x)(ROWS)
    assert watched.called() == [("pmap", "<lambda>", 1), ("pmap", "<lambda>", 1)]


def test_donation_is_recorded_and_still_happens(watched):
    f = watched.pmap(lambda w, x: w + x, donate_argnums=0)
    w = f(ROWS, ROWS)
    f(w, ROWS)
    assert w.is_deleted()
    first, second = watched.inputs(1)
    assert (first["is_donated"], first["is_deleted"]) == (True, True)
    assert (second["is_donated"], second["is_deleted"]) == (False, False)
    assert first["digest"]  # It was noted before it was gone.


def test_what_pmap_takes_by_keyword_is_not_donated(watched):
    f = watched.pmap(lambda w, x: w + x, donate_argnums=0)
    w = f(ROWS, ROWS)
    f(w=w, x=ROWS)
    assert not w.is_deleted()
    assert not watched.inputs(1)[0]["is_donated"]


def test_donation_by_name_is_the_same(watched):
    mapped = rows(watched.shard_map)
    f = watched.jit(mapped(double), donate_argnames="x")
    f(ROWS)
    assert watched.inputs()[0]["is_donated"]


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (lambda: jax.random.split(jax.random.key(0), N), "key<fry>"),
        (lambda: ROWS.astype(jnp.bfloat16), "bfloat16"),
        (lambda: ROWS.astype(np.float64), "float32"),
        (lambda: ROWS > 3, "bool"),
    ],
)
def test_every_kind_of_leaf_is_noted(watched, leaf, dtype):
    watched.pmap(lambda x: 1)(leaf())
    assert watched.inputs()[0]["dtype"] == dtype


def test_calls_are_bounded_and_counted(tmp_path):
    watched = Watched(tmp_path, calls=2)
    f = watched.pmap(double)
    for _ in range(5):
        f(ROWS)
    watched.listener.end()
    (function,) = watched.records.functions.values()
    assert (function.count, len(function.calls)) == (5, 2)


def test_an_error_is_recorded_and_raised(watched):
    f = watched.pmap(lambda x: x.no_such_thing)
    with pytest.raises(AttributeError):
        f(ROWS)
    records = watched.records
    assert records.call(records.functions[0], 0).error.startswith("AttributeError: ")


def test_functions_that_others_make_are_jax_s_own(watched):
    code = compile("made = jit(abs)", "/usr/lib/library.py", "exec")
    names = {"jit": watched.jit}
    exec(code, names)
    assert type(names["made"]) is type(jax.jit(abs))


def test_a_file_is_known_by_a_relative_name_wherever_the_program_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listener = Recording(Recorder(tmp_path), str(tmp_path), 1)
    monkeypatch.chdir("/")
    names = {"place": listener.place}
    exec(compile("made = place()", "train.py", "exec"), names)
    assert (names["made"].file, names["made"].line) == ("train.py", 1)


def test_a_truncated_record_is_read_up_to_its_end(watched, tmp_path):
    f = watched.pmap(double)
    f(ROWS), f(ROWS)
    (path,) = tmp_path.glob("*.calls")
    path.write_bytes(path.read_bytes()[:-40])
    assert [len(f.calls) for f in watched.records.functions.values()] == [1]


def test_signature_and_name_stay(watched):
    f = watched.jit(double)
    assert (f.__name__, f.__wrapped__) == ("double", double)
    assert f.eval_shape(ROWS).shape == ROWS.shape
