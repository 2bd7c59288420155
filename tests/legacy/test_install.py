"""install() puts back what JAX removed, and uninstall() leaves everything as it was."""

import functools
import sys
import threading
import types

import jax
import jax.extend.core  # pmapx imports it, and is imported when it is first used.
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx
from oracle import assert_same

N = jax.device_count()
ARRAY = type(jnp.zeros(()))


def snapshot():
    return {
        "jax": dict(vars(jax)),
        "jax.sharding": dict(vars(jax.sharding)),
        "config": dict(vars(jax.config)),
        "Config": dict(vars(type(jax.config))),
        "array": dict(vars(ARRAY)),
        "finders": list(sys.meta_path),
    }


@pytest.fixture(autouse=True)
def jax_is_left_as_it_was():
    before = snapshot()
    yield
    pmapx.uninstall()
    assert snapshot() == before


@pytest.fixture
def module():
    """A loaded module that took pmap from JAX in every way there is."""
    module = types.ModuleType("somebodys_trainer")
    source = """
import functools
import jax
from jax import pmap
from jax import pmap as pm
batch_pmap = functools.partial(jax.pmap, axis_name="batch")
def train(map_fn=jax.pmap, *, eval_fn=jax.pmap): return map_fn, eval_fn
class Trainer:
    mapper = staticmethod(jax.pmap)
    def run(self, map_fn=jax.pmap): return map_fn
def pmap_like(fun): return fun
"""
    exec(source, vars(module))
    sys.modules["somebodys_trainer"] = module
    yield module
    del sys.modules["somebodys_trainer"]


def held(module):
    positional = functools.partial(module.Trainer.run, None)
    return [
        module.pmap,
        module.pm,
        module.batch_pmap.func,
        *module.train(),
        module.Trainer.mapper,
        positional(),
    ]


def test_the_names_are_there_and_work():
    with pmapx.install():
        replicated = jax.device_put_replicated({"w": np.ones(2, np.float32)}, jax.devices())
        sharded = jax.device_put_sharded(list(np.arange(float(N))), jax.devices())
        out = jax.pmap(lambda p, x: p["w"] * x)(replicated, sharded)

    assert jax.pmap is not pmapx.pmap
    assert_same(out, np.outer(np.arange(N), np.ones(2)).astype(np.float32))


def test_copies_in_loaded_modules_are_found_and_put_back(module):
    original = jax.pmap
    assert held(module) == [original] * 7

    with pmapx.install():
        assert held(module) == [pmapx.pmap] * 7
        assert module.batch_pmap.keywords == {"axis_name": "batch"}

    assert held(module) == [original] * 7


def test_a_module_loaded_between_two_installs_is_found_too(module):
    installed = pmapx.install()
    module.late = installed._originals["pmap"]

    pmapx.install()

    assert module.late is pmapx.pmap


class Refusing:
    """An object of which nothing can be asked, as proxies of things that are not there."""

    def refuse(self, *_):
        raise RuntimeError("this object is not to be asked anything")

    __class__ = property(refuse)
    __getattr__ = __eq__ = __hash__ = __bool__ = __repr__ = __len__ = __call__ = refuse


class RefusingClass(type):
    def __getattribute__(cls, name):
        raise RuntimeError("this class is not to be asked anything")


def test_objects_that_raise_when_asked_are_passed_over(module, monkeypatch):
    module.refusing = Refusing()
    module.refusing_class = RefusingClass("Hidden", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "no_module", Refusing())

    with pmapx.install():
        assert all(fn is pmapx.pmap for fn in held(module))

    assert not any(fn is pmapx.pmap for fn in held(module))


@pytest.mark.behaviour("I7")
def test_a_removed_name_that_is_there_is_left_alone(monkeypatch):
    own = object()
    monkeypatch.setattr(jax, "tree_map", own, raising=False)
    monkeypatch.setitem(sys.modules, "jax.linear_util", own)

    with pmapx.install() as installed:
        assert jax.tree_map is sys.modules["jax.linear_util"] is own
        assert "jax.tree_map" not in installed.patched
        assert "jax.linear_util" not in installed.patched


def test_functions_of_the_same_name_are_left_alone(module):
    before = module.pmap_like
    module.pmap = before

    with pmapx.install() as installed:
        assert module.pmap is before
        assert "somebodys_trainer.pmap" not in installed.patched


def test_a_pmap_that_somebody_else_put_there_is_left_alone(monkeypatch):
    fake = lambda fun, *args, **kwargs: fun
    monkeypatch.setattr(jax, "pmap", fake)

    with pmapx.install() as installed:
        assert jax.pmap is fake
        assert "jax.pmap" not in installed.patched


def test_what_somebody_bound_after_us_stays(monkeypatch):
    original = jax.pmap
    pmapx.install()
    fake = lambda fun, *args, **kwargs: fun
    jax.pmap = fake

    pmapx.uninstall()

    assert jax.pmap is fake
    jax.pmap = original


def test_the_list_of_what_was_replaced_can_be_printed(module):
    with pmapx.install() as installed:
        text = str(installed)

    for name in ["jax.pmap", "jax.device_put_replicated", "somebodys_trainer.pm", "Trainer.mapper"]:
        assert name in text
    assert str(installed) == "pmapx is not installed"


def test_installing_twice_is_installing_once():
    original = jax.pmap
    first = pmapx.install()
    patched = first.patched

    assert pmapx.install() is first
    assert first.patched == patched
    first.uninstall()
    assert jax.pmap is original


def test_blocks_may_be_nested_and_the_last_one_uninstalls():
    original = jax.pmap
    with pmapx.install():
        with pmapx.install():
            pass
        assert jax.pmap is pmapx.pmap
    assert jax.pmap is original


def test_a_block_inside_an_install_for_good_leaves_it():
    pmapx.install()
    with pmapx.install():
        pass

    assert jax.pmap is pmapx.pmap


def test_an_error_in_the_block_uninstalls():
    original = jax.pmap

    with pytest.raises(KeyError), pmapx.install():
        raise KeyError

    assert jax.pmap is original


def test_an_error_while_installing_leaves_nothing_behind(monkeypatch):
    original = jax.pmap
    monkeypatch.setattr("pmapx._src.legacy.pmap_sharding_and_flags.restore", lambda bindings: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        pmapx.install()

    assert jax.pmap is original


def test_threads_install_and_uninstall_at_once():
    original = jax.pmap
    failures = []

    def work():
        for _ in range(10):
            with pmapx.install():
                if jax.pmap is not pmapx.pmap:
                    failures.append("not installed inside a block")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert failures == []
    assert jax.pmap is original


def test_oversubscription_can_be_asked_for():
    with pmapx.install(oversubscribe=True):
        out = jax.pmap(lambda x: x - jax.lax.pmean(x, "i"), axis_name="i")(np.arange(2.0 * N))

    assert_same(out, (np.arange(2 * N) - (2 * N - 1) / 2).astype(np.float32))


def test_installing_with_other_options_changes_them():
    getitem = ARRAY.__getitem__
    with pmapx.install():
        assert ARRAY.__getitem__ is not getitem
        with pmapx.install(indexing=False):
            assert ARRAY.__getitem__ is getitem


def test_no_device_is_started_by_installing(run_python):
    code = """
import os, jax, pmapx
pmapx.install()
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
print(jax.device_count())
"""
    assert run_python(code, PMAPX_PUBLIC_ONLY="", JAX_PLATFORMS="cpu").strip() == "3"


def flax_stand_in(source):
    """Modules with the names of Flax's, for what does not need Flax itself."""
    package = types.ModuleType("flax")
    package.__path__ = []
    jax_utils = types.ModuleType("flax.jax_utils")
    exec(source, vars(jax_utils))
    package.jax_utils = jax_utils
    return {"flax": package, "flax.jax_utils": jax_utils}


KNOWN = """
import jax
def replicate(tree, devices=None): return "theirs"
def unreplicate(tree): return "theirs"
def prefetch_to_device(iterator, size, devices=None): return "theirs"
"""
CHANGED = """
def replicate(tree, mesh): return "theirs"
def unreplicate(tree, strict=False): return "theirs"
from functools import partial as prefetch_to_device
"""


@pytest.mark.behaviour("F5")
def test_functions_of_flax_become_the_fast_ones_and_come_back(monkeypatch):
    modules = flax_stand_in(KNOWN)
    for name, value in modules.items():
        monkeypatch.setitem(sys.modules, name, value)
    utils = modules["flax.jax_utils"]
    user = types.ModuleType("user_of_flax")
    user.rep = utils.replicate
    monkeypatch.setitem(sys.modules, "user_of_flax", user)

    with pmapx.install():
        state = user.rep({"w": np.ones(3, np.float32)})
        assert_same(utils.unreplicate(tree=state), {"w": np.ones(3, np.float32)})
        (batch,) = utils.prefetch_to_device(iter([np.zeros((N, 1), np.float32)]), 2)
        assert len(batch.addressable_shards) == N
        assert jax.jit(lambda x: jnp.float32(utils.unreplicate(x) == "theirs"))(state) == 1

    assert utils.unreplicate(state) == "theirs"
    assert user.rep is utils.replicate


NEWER = """
def replicate(tree, devices=None, axis_name="rows"): return "theirs"
def prefetch_to_device(iterator, size, devices=None, axis_name="rows"): return "theirs"
def unreplicate(tree): return "theirs"
"""


@pytest.mark.behaviour("F5")
def test_functions_of_newer_flax_become_the_fast_ones_unless_an_axis_is_named(monkeypatch):
    modules = flax_stand_in(NEWER)
    for name, value in modules.items():
        monkeypatch.setitem(sys.modules, name, value)
    utils = modules["flax.jax_utils"]
    rows = np.zeros((N, 1), np.float32)

    with pmapx.install():
        assert utils.replicate(np.ones(3)).shape == (N, 3)
        assert utils.replicate(np.ones(3), jax.devices()[:1]).shape == (1, 3)
        assert utils.replicate(np.ones(3), axis_name="i") == "theirs"
        assert [batch.shape for batch in utils.prefetch_to_device([rows], size=1)] == [(N, 1)]
        assert utils.prefetch_to_device([rows], 1, axis_name="i") == "theirs"


def test_leaves_that_only_flax_takes_are_left_to_it(monkeypatch):
    modules = flax_stand_in(NEWER)
    for name, value in modules.items():
        monkeypatch.setitem(sys.modules, name, value)
    utils = modules["flax.jax_utils"]

    with pmapx.install():
        assert utils.replicate({"w": np.ones(3), "name": np.array(["a"])}) == "theirs"
        assert utils.replicate({"w": np.ones(3), "name": "a"}) == "theirs"
        assert utils.unreplicate({"w": np.ones((N, 3)), "step": 0}) == "theirs"


@pytest.fixture(autouse=True)
def _flax_as_before():
    """Takes away what a test imported in Flax's name, which others would meet."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "flax":
            del sys.modules[name]


def test_functions_of_flax_with_another_signature_are_left_alone(monkeypatch):
    modules = flax_stand_in(CHANGED)
    for name in [name for name in sys.modules if name.partition(".")[0] == "flax"]:
        monkeypatch.delitem(sys.modules, name)  # Flax itself, where it is installed.
    for name, value in modules.items():
        monkeypatch.setitem(sys.modules, name, value)

    with pmapx.install() as installed:
        assert modules["flax.jax_utils"].replicate(1, 2) == "theirs"
        assert not [name for name in installed.patched if name.startswith("flax")]


def test_flax_imported_later_is_taken_over_as_it_loads(tmp_path, monkeypatch):
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax" / "__init__.py").write_text("")
    (tmp_path / "flax" / "jax_utils.py").write_text(KNOWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flax", raising=False)
    monkeypatch.delitem(sys.modules, "flax.jax_utils", raising=False)

    with pmapx.install() as installed:
        from flax.jax_utils import replicate

        assert "flax.jax_utils.replicate" in installed.patched
        assert replicate(np.ones(2)).shape == (N, 2)

    from flax import jax_utils

    assert jax_utils.replicate(1) == "theirs"
    monkeypatch.delitem(sys.modules, "flax.jax_utils")
    monkeypatch.delitem(sys.modules, "flax")
