"""The pmapped function is still the user's: name, signature, kinds of callable (A16, A7)."""

import copy
import functools
import inspect
import operator
import pickle
import pydoc
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from oracle import assert_same
from program_counts import counting

N = jax.device_count()
X = jnp.arange(float(N))


def train_step(state, batch: int = 3, *, rate: float = 0.1) -> float:
    """One step."""
    return state + batch * rate


@pytest.mark.behaviour("A16")
def test_the_wrapped_function_can_be_reached():
    assert pmapx.pmap(train_step).__wrapped__ is train_step


@pytest.mark.behaviour("A16")
@pytest.mark.parametrize(
    "attribute", ["__name__", "__qualname__", "__doc__", "__module__", "__annotations__"]
)
def test_an_attribute_of_the_function_is_kept(attribute):
    assert getattr(pmapx.pmap(train_step), attribute) == getattr(train_step, attribute)


@pytest.mark.behaviour("A16")
def test_the_signature_is_kept():
    assert inspect.signature(pmapx.pmap(train_step)) == inspect.signature(train_step)


@pytest.mark.behaviour("A16")
def test_attributes_set_on_the_function_are_kept():
    def fun(x):
        return x

    fun.note = "mine"

    assert pmapx.pmap(fun).note == "mine"


@pytest.mark.behaviour("A16")
def test_the_name_shows_in_the_lowered_and_the_compiled_program():
    def distinctively_named(x):
        return x * 2

    lowered = pmapx.pmap(distinctively_named).lower(X)

    assert "distinctively_named" in lowered.as_text().splitlines()[0]
    assert "distinctively_named" in lowered.compile().as_text().splitlines()[0]


@pytest.mark.behaviour("A16")
def test_the_name_shows_in_the_trace_and_compile_events():
    def seen_by_the_profiler(x):
        return x * 3

    with counting() as counts:
        pmapx.pmap(seen_by_the_profiler)(X)

    assert counts.traces_of("seen_by_the_profiler") == 1
    assert counts.compiles_of("seen_by_the_profiler") == 1


@pytest.mark.behaviour("A16")
def test_the_name_shows_in_the_users_traceback():
    def fails_while_tracing(x):
        raise KeyError("from the user's body")

    with pytest.raises(KeyError, match="from the user's body") as raised:
        pmapx.pmap(fails_while_tracing)(X)

    assert "fails_while_tracing" in [entry.name for entry in raised.traceback]


@pytest.mark.behaviour("A16")
def test_it_works_as_a_bare_decorator():
    @pmapx.pmap
    def double(x):
        return 2 * x

    assert double.__name__ == "double"
    assert_same(double(X), 2 * X)


@pytest.mark.behaviour("A16")
def test_it_works_as_a_decorator_with_functools_partial():
    @functools.partial(pmapx.pmap, axis_name="i", in_axes=(0, None))
    def scale(x, factor):
        return factor * lax.psum(x, "i")

    assert_same(scale(X, 2.0), jnp.full(N, 2 * X.sum()))


@pytest.mark.behaviour("A16")
def test_the_axis_name_may_be_positional():
    assert_same(pmapx.pmap(lambda x: lax.psum(x, "i"), "i")(X), jnp.full(N, X.sum()))


@pytest.mark.behaviour("A16")
def test_the_options_of_jax_pmap_keep_their_names_and_order():
    ours = inspect.signature(pmapx.pmap).parameters
    additions = {"reshard": "allow", "oversubscribe": False, "compiler_options": None}

    assert list(ours)[:2] == ["fun", "axis_name"]
    assert {name: ours[name].default for name in additions} == additions
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in additions)
    for name in inspect.signature(jax.pmap).parameters:
        assert ours[name].default == inspect.signature(jax.pmap).parameters[name].default
        assert ours[name].kind == inspect.signature(jax.pmap).parameters[name].kind


@pytest.mark.no_context_mesh(
    "JAX has no shard_map that closes over arrays of explicit axes", kind="explicit"
)
@pytest.mark.behaviour("A16")
def test_a_functools_partial_is_mapped_with_its_bound_values_shared():
    mapped = pmapx.pmap(functools.partial(train_step, batch=2, rate=jnp.float32(0.5)))

    assert_same(mapped(X), X + 1)


@pytest.mark.behaviour("A16")
def test_a_partial_lends_its_functions_name_to_the_program():
    text = pmapx.pmap(functools.partial(train_step, rate=1.0)).lower(X, X).as_text()

    assert "train_step" in text.splitlines()[0]


class Model:
    def __init__(self, weight):
        self.weight = weight

    def apply(self, x):
        return self.weight * x

    def __call__(self, x):
        return self.weight + x

    @classmethod
    def of_class(cls, x):
        return (x, jnp.float32(cls is Model))

    @staticmethod
    def of_nobody(x):
        return -x


@pytest.mark.behaviour("A16")
def test_a_bound_method_is_mapped_over_its_own_arguments():
    mapped = pmapx.pmap(Model(3.0).apply)

    assert mapped.__name__ == "apply"
    assert_same(mapped(X), 3 * X)


@pytest.mark.behaviour("A16")
def test_bound_methods_of_two_objects_are_not_mixed_up():
    double, triple = pmapx.pmap(Model(2.0).apply), pmapx.pmap(Model(3.0).apply)

    assert_same(double(X), 2 * X)
    assert_same(triple(X), 3 * X)
    assert_same(double(X), 2 * X)


@pytest.mark.behaviour("A16")
def test_class_and_static_methods_are_mapped():
    assert_same(pmapx.pmap(Model.of_class)(X), (X, jnp.ones(N)))
    assert_same(pmapx.pmap(Model.of_nobody)(X), -X)


@pytest.mark.behaviour("A16")
def test_a_pmapped_method_binds_its_object_like_a_function():
    class Trainer:
        scale = 5.0

        @functools.partial(pmapx.pmap, static_broadcasted_argnums=0)
        def step(self, x):
            return self.scale * x

    trainer = Trainer()

    assert_same(trainer.step(X), 5 * X)
    assert_same(Trainer.step(trainer, X), 5 * X)


@pytest.mark.behaviour("A16")
def test_stages_of_a_pmapped_method_are_reached_through_its_class():
    class Trainer:
        @functools.partial(pmapx.pmap, static_broadcasted_argnums=0)
        def step(self, x):
            return 2 * x

    compiled = Trainer.step.lower(Trainer(), X).compile()

    assert_same(compiled(X), 2 * X)


@pytest.mark.behaviour("A16")
def test_a_callable_object_is_mapped():
    assert_same(pmapx.pmap(Model(4.0))(X), X + 4)


@pytest.mark.behaviour("A16")
@pytest.mark.parametrize(
    ("builtin", "args", "expected"),
    [
        (operator.neg, (X,), -X),
        (operator.add, (X, X), 2 * X),
        (operator.itemgetter("a"), ({"a": X, "b": X + 1},), X),
        (jnp.sin, (X,), jnp.sin(X)),
        (jax.nn.relu, (X - 1,), jax.nn.relu(X - 1)),
    ],
    ids=["neg", "add", "itemgetter", "sin", "relu"],
)
def test_functions_without_a_python_body_are_mapped(builtin, args, expected):
    assert_same(pmapx.pmap(builtin)(*args), expected, rtol=1e-6)


@pytest.mark.behaviour("A16")
def test_a_callable_without_a_signature_is_mapped():
    class NoSignature:
        @property
        def __signature__(self):
            raise ValueError("none")

        def __call__(self, x):
            return x + 1

    assert_same(pmapx.pmap(NoSignature())(X), X + 1)
    with pytest.raises(ValueError, match="argument 0"):
        pmapx.pmap(NoSignature())(1.0)


@pytest.mark.behaviour("A16")
def test_a_function_under_other_decorators_is_mapped():
    def logged(fun):
        @functools.wraps(fun)
        def inner(*args, **kwargs):
            return fun(*args, **kwargs)

        return inner

    mapped = pmapx.pmap(logged(jax.jit(train_step)))

    assert mapped.__name__ == "train_step"
    assert_same(mapped(X, X, rate=jnp.ones(N)), 2 * X)


@pytest.mark.behaviour("A16")
def test_variadic_functions_are_mapped():
    mapped = pmapx.pmap(lambda *xs, **named: sum(xs) + sum(named.values()))

    assert_same(mapped(X, X, a=X, b=X), 4 * X)


@pytest.mark.behaviour("A16")
def test_a_pmapped_function_is_hashable_and_equal_to_itself_alone():
    one, two = pmapx.pmap(train_step), pmapx.pmap(train_step)

    assert one == one
    assert one != two
    assert len({one, two, one}) == 2


@pytest.mark.behaviour("A16")
def test_a_pmapped_function_can_be_a_static_argument_of_jit():
    double = pmapx.pmap(lambda x: 2 * x)

    assert_same(jax.jit(lambda f, x: f(x), static_argnums=0)(double, X), 2 * X)


@pytest.mark.behaviour("A16")
def test_results_can_be_pickled():
    result = pickle.loads(pickle.dumps(pmapx.pmap(lambda x: x + 1)(X)))

    np.testing.assert_array_equal(result, X + 1)


class Name:
    """An axis name that is equal only to itself."""


@pytest.mark.behaviour("A7")
@pytest.mark.parametrize(
    "axis_name",
    [Name(), frozenset({"a"}), "i", "a name, with spaces (and more)", "", Name],
    ids=["object", "frozenset", "plain", "odd", "empty", "class"],
)
def test_any_hashable_names_the_axis(axis_name):
    def fun(x):
        return (
            lax.psum(x, axis_name),
            lax.pmean(x, (axis_name,)),
            lax.all_gather(x, axis_name),
            lax.ppermute(x, axis_name, [(k, (k + 1) % N) for k in range(N)]),
            lax.axis_index(axis_name),
        )

    result = pmapx.pmap(fun, axis_name)(X)

    assert_same(
        result,
        (
            jnp.full(N, X.sum()),
            jnp.full(N, X.mean()),
            jnp.broadcast_to(X, (N, N)),
            jnp.roll(X, 1),
            jnp.arange(N),
        ),
    )


@pytest.mark.behaviour("A7")
@pytest.mark.parametrize(
    "axis_name", ["\u00e4", "\u65e5\u672c", "a\\b", "\\x41", "\\", "'\u00e9\""], ids=ascii
)
def test_an_axis_name_may_have_characters_that_xla_cannot_read(axis_name, devices):
    """Some end the process if they reach the program."""

    def fun(x):
        return lax.psum(x, axis_name) + lax.axis_index(axis_name)

    expected = X.sum() + jnp.arange(N)
    on_one = pmapx.pmap(fun, axis_name, oversubscribe=True, devices=devices[:1])
    pair = pmapx.pmap(lambda x: pmapx.pmap(fun, axis_name)(x) + lax.psum(0.0, "j"), "j")

    np.testing.assert_array_equal(pmapx.pmap(fun, axis_name)(X), expected)
    np.testing.assert_array_equal(jax.jit(pmapx.pmap(fun, axis_name))(X), expected)
    np.testing.assert_array_equal(on_one(X), expected)
    np.testing.assert_array_equal(pair(X[None]), expected[None])
    assert pmapx.pmap(fun, axis_name).lower(X).compile().as_text()


@pytest.mark.behaviour("A7")
def test_a_tuple_is_one_name():
    name = ("data", "model")

    def fun(x):
        return lax.psum(x, (name,)), lax.pmax(x, (name,))

    assert_same(pmapx.pmap(fun, name)(X), (jnp.full(N, X.sum()), jnp.full(N, X.max())))


@pytest.mark.behaviour("A7")
def test_gradients_go_through_an_axis_named_by_an_object():
    name = Name()
    mapped = pmapx.pmap(lambda x: lax.psum(x * x, name), name)

    assert_same(jax.grad(lambda x: mapped(x).sum())(X), 2 * N * X)


@pytest.mark.behaviour("A7")
@pytest.mark.needs_devices(4)
def test_two_objects_name_two_nested_axes():
    rows, columns = Name(), Name()
    x = jnp.arange(4.0).reshape(2, 2)

    def fun(x):
        return lax.psum(x, rows), lax.psum(x, columns), lax.psum(x, (rows, columns))

    by_rows, by_columns, by_both = pmapx.pmap(pmapx.pmap(fun, columns), rows)(x)

    np.testing.assert_array_equal(by_rows, np.broadcast_to(x.sum(0), (2, 2)))
    np.testing.assert_array_equal(by_columns, np.broadcast_to(x.sum(1)[:, None], (2, 2)))
    np.testing.assert_array_equal(by_both, np.full((2, 2), x.sum()))


@pytest.mark.behaviour("A7")
def test_a_map_without_a_name_binds_none():
    with pytest.raises(NameError):
        pmapx.pmap(lambda x: lax.psum(x, "i"))(X)


@pytest.mark.behaviour("A7")
def test_an_unhashable_name_is_refused():
    with pytest.raises(TypeError):
        pmapx.pmap(lambda x: x, ["i"])(X)


@pytest.mark.behaviour("I2")
def test_a_wrapper_of_a_pmapped_function_is_what_jax_traces():
    mapped = pmapx.pmap(lambda x: x + 1)

    @functools.wraps(mapped)
    def wrapper(x):
        return 100 * mapped(x)[None]

    assert jax.eval_shape(wrapper, X).shape == (1, N)
    assert jax.make_jaxpr(wrapper)(X).out_avals[0].shape == (1, N)
    assert jax.jit(wrapper).lower(X).out_info.shape == (1, N)
    assert_same(jax.jit(wrapper)(X), 100 * (X + 1)[None])


@pytest.mark.behaviour("I2")
@pytest.mark.parametrize("fun", [train_step, jax.jit(train_step)], ids=["function", "jit"])
def test_nothing_of_pmapx_is_copied_to_a_wrapper(fun):
    theirs = set(vars(fun))  # Of a jit, what JAX itself keeps there.
    mapped = pmapx.pmap(fun)
    mapped(X, X)

    for wrapped in (mapped, fun):
        wrapper = functools.update_wrapper(lambda x: x, wrapped)
        assert {name for name in vars(wrapper) if name[:2] != "__"} <= theirs
        assert not hasattr(wrapper, "cache_info")
        assert not hasattr(wrapper, "lower")


@pytest.mark.behaviour("I2")
def test_a_wrapper_of_a_pmapped_function_is_pmapped_as_it_is():
    mapped = pmapx.pmap(lambda x: x + 1)

    @functools.wraps(mapped)
    def wrapper(x):
        return 2 * mapped(x)

    assert_same(pmapx.pmap(wrapper)(X[:1, None]), 2 * (X[:1, None] + 1))


@pytest.mark.behaviour("I2")
def test_jax_takes_a_pmapped_function_itself():
    mapped = pmapx.pmap(lambda x: x + 1)

    assert jax.eval_shape(mapped, X).shape == (N,)
    assert jax.make_jaxpr(mapped)(X).out_avals[0].shape == (N,)
    assert_same(jax.jit(mapped)(X), X + 1)


@pytest.mark.behaviour("A16")
def test_a_pmapped_jit_has_the_stages_of_the_pmap():
    mapped = pmapx.pmap(jax.jit(lambda x: x + 1))

    assert mapped.eval_shape(X).shape == (N,)
    assert "num_partitions" in mapped.lower(X).as_text()


@pytest.mark.behaviour("A16")
def test_it_has_no_methods_of_the_cache_that_counts_its_calls():
    mapped = pmapx.pmap(train_step)

    for each in (mapped, mapped.__call__):
        assert not hasattr(each, "cache_clear")
        assert not hasattr(each, "cache_parameters")


@pytest.mark.behaviour("A16")
def test_help_and_inspect_show_the_function():
    mapped = pmapx.pmap(train_step)
    text = pydoc.plain(pydoc.render_doc(mapped))

    assert "train_step(state, batch: int = 3, *, rate: float = 0.1)" in text
    assert "One step." in text
    assert inspect.unwrap(mapped) is train_step
    assert inspect.isroutine(mapped)
    assert "train_step" in repr(mapped)


@pmapx.pmap
def module_level(x):
    return x + 1


@pytest.mark.behaviour("A16")
def test_a_copy_is_the_function_itself_and_so_is_what_its_name_pickles_to():
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy(module_level) is module_level
    assert pickle.loads(pickle.dumps(module_level)) is module_level


by_another_name = pmapx.pmap(train_step, in_axes=(0, None))


@pytest.mark.behaviour("A16")
def test_one_that_its_name_does_not_lead_to_is_pickled_as_its_function_and_options():
    by_another_name.note = "mine"

    again = pickle.loads(pickle.dumps(by_another_name))

    assert again.__wrapped__ is train_step
    assert again.note == "mine"
    assert_same(again(X, 10), by_another_name(X, 10))


@pytest.mark.behaviour("A16")
@pytest.mark.no_context_mesh("results are on its mesh")
def test_cloudpickle_takes_a_pmapped_lambda_and_a_closure_that_holds_one(devices):
    cloudpickle = pytest.importorskip("cloudpickle")
    mapped = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", devices=devices[::-1])
    mapped(X)

    for fun in (mapped, lambda x: mapped(x)):
        again = cloudpickle.loads(cloudpickle.dumps(fun))
        assert_same(again(X), jnp.full(N, X.sum()))
        assert list(again(X).sharding.mesh.devices.flat) == devices[::-1]


IN_MAIN = """
import sys, cloudpickle, numpy as np, pmapx

@pmapx.pmap
def step(x):
    return x + 1

def train(x):
    return step(step(x))

cloudpickle.dump((step, train), open(sys.argv[1], "wb"))
"""

ELSEWHERE = """
import sys, cloudpickle, numpy as np
step, train = cloudpickle.load(open(sys.argv[1], "rb"))
print(float(step(np.ones(1))[0]), float(train(np.ones(1))[0]), step.__name__)
"""


@pytest.mark.behaviour("A16")
def test_cloudpickle_sends_what_a_script_defines_to_another_process(tmp_path):
    pytest.importorskip("cloudpickle")
    for code in (IN_MAIN, ELSEWHERE):
        script = tmp_path / "script.py"
        script.write_text(code)
        command = [sys.executable, str(script), str(tmp_path / "pickled")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    assert done.stdout.split() == ["2.0", "3.0", "step"]


@pytest.mark.behaviour("A16")
def test_a_partial_of_a_pmapped_function_calls_it():
    mapped = pmapx.pmap(lambda a, x: a * x, in_axes=(None, 0))
    double = functools.partial(mapped, 2.0)

    assert double.func is mapped
    assert_same(double(X), 2 * X)
    assert mapped.cache_info().calls == 1


def test_cache_size_is_a_number_and_a_method():
    mapped = pmapx.pmap(lambda x: x + 1)

    assert mapped._cache_size == mapped._cache_size() == 0
    for _ in range(3):
        mapped(X)
    assert mapped._cache_size == mapped._cache_size() == 1
    mapped(np.ones((N, 2), np.float32))
    assert mapped._cache_size == 2
    assert mapped._cache_size > 1
    assert (int(mapped._cache_size), repr(mapped._cache_size)) == (2, "2")
    mapped.clear_cache()
    assert mapped._cache_size == 0


def test_global_arg_shapes_may_be_none_only():
    assert_same(pmapx.pmap(lambda x: x + 1, global_arg_shapes=None)(X), X + 1)

    with pytest.raises(ValueError, match="global_arg_shapes"):
        pmapx.pmap(lambda x: x, global_arg_shapes=((N,),))


@pytest.mark.behaviour("A12")
@pytest.mark.parametrize("argnums", [np.int64(1), np.array(1), np.array([1]), (np.int32(1),)])
def test_argnums_may_be_integers_of_numpy(argnums):
    assert_same(pmapx.pmap(lambda x, n: n * x, static_broadcasted_argnums=argnums)(X, 3), 3 * X)


@pytest.mark.behaviour("A2")
def test_an_argument_may_be_called_self_where_the_call_is_traced():
    mapped = pmapx.pmap(lambda self, x: self + x)

    assert_same(jax.jit(mapped)(self=X, x=X), 2 * X)
    assert jax.eval_shape(mapped, self=X, x=X).shape == X.shape
