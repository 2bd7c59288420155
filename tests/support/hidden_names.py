"""Each private name of JAX that pmapx uses, hidden from pmapx in turn; run in a fresh process.

Names are read off the source of ``pmapx/_src/fastpath``, so a new use is covered without a change
here. JAX itself still sees them. For each, a child process that is forked before any device starts
runs the core.
"""

import ast
import importlib
import os
import sys
import time
import traceback
import types
from pathlib import Path

from virtual_devices import xla_flags

os.environ["XLA_FLAGS"] = xla_flags(2)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

PACKAGE = "pmapx._src.fastpath"
# What objects that pmapx is handed by JAX are made of: attributes are looked for here.
CLASSES = {
    "jax._src.stages": ["Compiled", "CompiledCallParams"],
    "jax._src.interpreters.pxla": ["MeshExecutable", "ExecuteReplicated"],
    "jax._src.distributed": ["State"],
    "jaxlib._jax": ["LoadedExecutable", "Client", "DistributedRuntimeClient", "ArrayImpl"],
}


def is_hidden_from(frame):
    return frame.f_globals.get("__name__", "").startswith(PACKAGE)


class Hiding(types.ModuleType):
    """A module with names that pmapx does not see, or sees as something else."""

    def __getattribute__(self, name):
        hidden = super().__getattribute__("__dict__").get("hidden_from_pmapx", {})
        if name in hidden and is_hidden_from(sys._getframe(1)):
            return hidden[name]()
        return super().__getattribute__(name)


class HiddenAttribute:
    """An attribute of a class that pmapx does not see, or sees as something else."""

    def __init__(self, original, as_what):
        self.original = original
        self.as_what = as_what

    def __get__(self, instance, owner=None):
        if is_hidden_from(sys._getframe(1)):
            return self.as_what()
        if hasattr(self.original, "__get__"):
            return self.original.__get__(instance, owner)
        return self.original

    def __set__(self, instance, value):
        self.original.__set__(instance, value)


def missing():
    raise AttributeError("hidden by the test")


def hide(place, name, as_what):
    if isinstance(place, types.ModuleType):
        place.__dict__.setdefault("hidden_from_pmapx", {})[name] = as_what
        place.__class__ = Hiding
    else:
        setattr(place, name, HiddenAttribute(place.__dict__[name], as_what))


def called_name(node):
    return getattr(getattr(node, "func", None), "id", None)


def each_is_private(cls):
    return cls.__name__ not in ("Compiled", "ArrayImpl")  # Users have these in hand.


def private_names():
    """Yields (module or class, name) for each private thing of JAX that the package mentions."""
    directory = Path(importlib.util.find_spec("pmapx").origin).parent / "_src" / "fastpath"
    modules, attributes = {}, set()
    trees = [ast.parse(path.read_text()) for path in sorted(directory.glob("*.py"))]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign) and called_name(node.value) == "_module":
            modules[node.targets[0].id] = [argument.value for argument in node.value.args]
        if isinstance(node, ast.Attribute):
            attributes.add((ast.unparse(node.value), node.attr))
        if called_name(node) in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
            attributes.add((ast.unparse(node.args[0]), node.args[1].value))
    assert len(modules) > 5
    found = {}
    for value, name in attributes:
        head, _, alias = value.partition(".")
        if head == "jax_src" and alias in modules:
            path = ".".join(modules[alias]).replace("jax._src.lib._jax", "jaxlib._jax")
            module = importlib.import_module(path)
            if hasattr(module, name):
                found[path, name] = module
            continue
        for path, names in CLASSES.items():
            module = importlib.import_module(path)
            for cls in (getattr(module, each) for each in names if hasattr(module, each)):
                if name in vars(cls) and (name.startswith("_") or each_is_private(cls)):
                    found[f"{path}.{cls.__name__}", name] = cls
    return [(path, name, place) for (path, name), place in sorted(found.items(), key=str)]


def core():
    """What a program expects of pmapx, whatever JAX hides."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use_pmapx()
    mine = [str(w.message) for w in caught if "PMX913" in str(w.message)]
    assert len(mine) == len(set(mine)), mine
    assert len(mine) <= 6, mine


def use_pmapx():
    import jax.numpy as jnp

    import pmapx
    from pmapx._src import fastpath

    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    share = pmapx.pmap(lambda x: x / jax.lax.psum(x, "i"), "i", donate_argnums=0)
    for _ in range(3):
        np.testing.assert_allclose(share(jnp.asarray(x) + 1), (x + 1) / (x + 1).sum(0))
    step = pmapx.pmap(lambda n, state: jax.tree.map(lambda leaf: leaf * n, state),
                      static_broadcasted_argnums=0, donate_argnums=1)  # fmt: skip
    state = pmapx.replicate({"w": np.ones(3, np.float32), "k": 2.0})
    for n in (2, 3, 2, 3):
        before, state = state, step(n, state)
        assert before["w"].is_deleted()
    np.testing.assert_array_equal(pmapx.unreplicate(state)["w"], np.full(3, 36.0))
    assert step.cache_info().compiles == 2
    assert step.cache_info().calls == 4
    double = pmapx.pmap(lambda x: x * 2)
    for placed in (x, jnp.asarray(x), jax.device_put(x, jax.devices()[1])) * 2:
        np.testing.assert_array_equal(double(placed), 2 * x)
    np.testing.assert_array_equal(double(double(double(x))), 8 * x)
    assert double.cache_info().compiles == 1
    np.testing.assert_array_equal(jax.jit(lambda x: double(x) + 1)(x), 2 * x + 1)
    np.testing.assert_array_equal(jax.grad(lambda x: double(x).sum())(x), np.full((2, 2), 2.0))
    keys = jax.random.wrap_key_data(np.arange(4, dtype=np.uint32).reshape(2, 2))
    same = pmapx.pmap(lambda key: key)
    assert (jax.random.key_data(same(same(same(keys)))) == jax.random.key_data(keys)).all()
    jax.clear_caches()
    double.clear_cache()
    np.testing.assert_array_equal(double(x), 2 * x)
    with jax.debug_nans(True):
        try:
            pmapx.pmap(jnp.log)(-x - 1)
            raise AssertionError("nothing was raised")
        except FloatingPointError:
            pass
    fastpath.can_run_locally(tuple(jax.local_devices()))
    fastpath.coordination_client()
    fastpath.joined_as()
    fastpath.coordinator_address()
    fastpath.gloo_on_loopback()
    fastpath.more_cpu_devices(1)
    fastpath.pmap_options(jax.pmap(lambda x: x))


def in_a_child(hidden, as_what):
    """Forks a process that runs the core; returns its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for _, name, place in hidden:
            hide(place, name, as_what)
        core()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(which):
    names = private_names()
    assert len(names) > 25, names
    cases = {"nothing": ([], missing), "everything": (names, missing)}
    if which == "each":
        for path, name, place in names:
            cases[f"{path}.{name} missing"] = ([(path, name, place)], missing)
            cases[f"{path}.{name} changed"] = ([(path, name, place)], object)
    waiting, running, failed = list(cases), {}, []
    while waiting or running:
        while waiting and len(running) < 2:
            case = waiting.pop(0)
            running[in_a_child(*cases[case])] = case, time.monotonic()
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            case, _ = running.pop(child)
            if status:
                failed.append(f"{case}: status {status}")
            continue
        for child, (_, started) in running.items():
            if time.monotonic() - started > 100:
                os.kill(child, 9)
        time.sleep(0.02)
    print(f"{len(cases)} cases", *failed, sep="\n")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) != 0)
