"""What a listener receives of a running program."""

import copy
import functools
import pickle

import jax
import numpy as np
import pytest

import pmapx
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.watch import frames
from pmapx._src.watch.transforms import Listener, attach, watching

N = jax.device_count()
X = np.ones((N, 3), np.float32)


class Heard(Listener):
    transforms = ("jit",)
    has_indexing = True

    def __init__(self):
        self.events = []

    def made(self, function):
        _, caller, *_ = frames.callers()
        self.events.append(("made", function.kind, caller.f_code.co_name))
        return True

    def call(self, call):
        result = call.run()
        self.events.append(("call", call.function.kind, len(call.args)))
        return result

    def index(self, x, index):
        self.events.append(("index", index))


@pytest.fixture
def heard(monkeypatch):
    listener = Heard()
    array = type(jax.numpy.ones(1))
    monkeypatch.setattr(jax, "jit", jax.jit)
    monkeypatch.setattr(array, "__getitem__", array.__getitem__)
    monkeypatch.setattr(PmapImpl, "as_function", PmapImpl.as_function)
    attach(listener)
    return listener


def pickled_by_name(x):
    return x


def test_functions_calls_and_indices_are_received(heard):
    y = pmapx.pmap(lambda x: 2 * x)(X)
    jax.jit(lambda x: x)(y)[0]

    here = "test_functions_calls_and_indices_are_received"
    assert heard.events == [
        ("made", "pmap", here),
        ("call", "pmap", 1),
        ("made", "jit", here),
        ("call", "jit", 1),
        ("index", 0),
    ]


def test_a_pmap_is_received_under_every_name(heard):
    from pmapx._src.map.pmap import pmap

    functools.partial(pmap, axis_name="i")(lambda x: x)(X)

    assert [event[:2] for event in heard.events] == [("made", "pmap"), ("call", "pmap")]


def test_a_decorator_that_waits_for_its_function(heard):
    made = watching(heard, "jit", lambda fun=None, **kw: functools.partial(jax.vmap, **kw))

    @made(in_axes=(None, 0))
    def f(n, x):
        return n * x

    f(2, X)
    assert heard.events[-1] == ("call", "jit", 2)


def test_a_watched_function_is_otherwise_the_same(heard):
    f = pmapx.pmap(pickled_by_name, donate_argnums=0)

    assert f.__name__ == "pickled_by_name"
    assert f.__wrapped__ is pickled_by_name
    assert f.lower(X).compile() is not None
    assert f.cache_info().calls == 0
    assert copy.deepcopy(f) is not None


def test_a_watched_function_is_pickled_by_its_name():
    global pickled_by_name
    plain = pickled_by_name
    try:
        pickled_by_name = watching(Heard(), "jit", jax.jit)(pickled_by_name)
        assert pickle.loads(pickle.dumps(pickled_by_name)) is pickled_by_name
    finally:
        pickled_by_name = plain


def test_a_wrapper_of_a_watched_function_is_not_watched(heard):
    f = jax.jit(lambda x: x)
    wrapper = functools.wraps(f)(lambda x: x)

    heard.events.clear()
    wrapper(X)

    assert heard.events == []


def test_a_span_is_the_expression_that_is_evaluated():
    file, first, column, last, end_column = frames.span(next(frames.callers()))

    assert file == __file__
    assert (first, end_column - column) == (last, len("frames.span(next(frames.callers()))"))
